//! A model in device memory, with the bind group that all its kernels share.
//!
//! **Invariant:** the bind group names the current buffers. A buffer that grows keeps its contents.

use moeflux::provider::error::Result;
use moeflux::provider::ops::Workspace;
use moeflux::provider::weights::Weights;

use crate::compiler::RouteShape;
use crate::config::GpuConfig;
use crate::device::Gpu;
use crate::device::recorder::CommandRecorder;
use crate::experts::DeviceExperts;
use crate::memory::STORAGE;
use crate::memory::batches::Batches;
use crate::memory::states::DeviceStates;
use crate::memory::weights::DeviceWeights;
use crate::memory::workspace::DeviceWorkspace;

/// Device memory of a model and its sessions.
#[derive(Debug)]
pub(super) struct ModelMemory {
    pub(super) weights: DeviceWeights,
    pub(super) workspace: DeviceWorkspace,
    pub(super) batches: Batches,
    pub(super) states: DeviceStates,
    pub(super) experts: DeviceExperts,
    /// Routes as kernels see them: (expert, bits of its weight).
    pub(super) route_pairs: wgpu::Buffer,
    /// Bind group 0 of all kernels.
    pub(super) group: wgpu::BindGroup,
}

impl ModelMemory {
    /// Copies a model's weights to a device and allocates memory for steps of at most `n_rows_max`
    /// rows, or of fewer if the device's limits require.
    pub(super) fn new(
        gpu: &Gpu,
        weights: &Weights,
        (workspace, n_rows_max): (&Workspace, usize),
        config: &GpuConfig,
    ) -> Result<Self> {
        let workspace = DeviceWorkspace::new(gpu, workspace, n_rows_max)?;
        let weights = DeviceWeights::upload(gpu, weights)?;
        let batches = Batches::new(gpu, workspace.n_rows_max)?;
        let experts = DeviceExperts::new(gpu, config)?;
        let route_pairs = gpu.buffer("routes", 16, STORAGE)?;
        let buffers = [
            &workspace.buffer,
            &batches.buffer,
            &route_pairs,
            experts.table_buffer(),
            &weights.vectors,
        ];
        let group = group_of(gpu, buffers);
        let states = DeviceStates::default();
        Ok(Self { weights, workspace, batches, states, experts, route_pairs, group })
    }

    /// Recreates the workspace for `n_rows_max` rows. Plans compiled before are no longer valid.
    pub(super) fn resize_rows(
        &mut self,
        gpu: &Gpu,
        workspace: &Workspace,
        n_rows_max: usize,
    ) -> Result<()> {
        self.workspace = DeviceWorkspace::new(gpu, workspace, n_rows_max)?;
        self.batches = Batches::new(gpu, self.workspace.n_rows_max)?;
        self.bind(gpu);
        Ok(())
    }

    /// Allocates the memory that compiled plans need.
    pub(super) fn grow(&mut self, recorder: &mut CommandRecorder, route: RouteShape) -> Result<()> {
        let mut has_grown = false;
        if let Some(larger) = self.workspace.grown(recorder.gpu())? {
            let old = &self.workspace.buffer;
            recorder.encoder().copy_buffer_to_buffer(old, 0, &larger, 0, old.size());
            self.workspace.buffer = larger;
            has_grown = true;
        }
        let route_bytes = (self.workspace.n_rows_max * route.top_k * 8) as u64;
        if route_bytes > self.route_pairs.size() {
            let larger = recorder.gpu().buffer("routes", route_bytes, STORAGE)?;
            let old = &self.route_pairs;
            recorder.encoder().copy_buffer_to_buffer(old, 0, &larger, 0, old.size());
            self.route_pairs = larger;
            has_grown = true;
        }
        if has_grown {
            self.bind(recorder.gpu());
        }
        Ok(())
    }

    /// Frees what only recorded commands needed, since all of them are submitted.
    pub(super) fn submitted(&mut self) {
        self.batches.submitted();
        self.experts.submitted();
    }

    fn bind(&mut self, gpu: &Gpu) {
        let buffers = [
            &self.workspace.buffer,
            &self.batches.buffer,
            &self.route_pairs,
            self.experts.table_buffer(),
            &self.weights.vectors,
        ];
        self.group = group_of(gpu, buffers);
    }
}

/// Binds activations, rows of batches, routes, tables of experts, and vectors.
fn group_of(gpu: &Gpu, buffers: [&wgpu::Buffer; 5]) -> wgpu::BindGroup {
    let entries: Vec<wgpu::BindGroupEntry<'_>> = (0..)
        .zip(buffers)
        .map(|(binding, it)| wgpu::BindGroupEntry { binding, resource: it.as_entire_binding() })
        .collect();
    gpu.device().create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &gpu.layouts().model,
        entries: &entries,
    })
}
