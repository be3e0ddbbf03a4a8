//! Compilation context for kernels: locations of operands, the configuration, and the emitted
//! steps.
//!
//! **Invariant:** steps hold only data that does not change between batches. This module knows no
//! kernel: [`crate::kernels`] selects the kernel of an op.

use std::collections::HashMap;

use moeflux::provider::error::{Error, Result};
use moeflux::provider::ids::{LayerIdx, MatrixId, VectorId};
use moeflux::provider::ops::{Heads, RowSet};
use moeflux_kernels::MatrixLayout;

use crate::config::GpuConfig;
use crate::device::Gpu;
use crate::memory::weights::{DeviceMatrix, DeviceWeights};
use crate::memory::workspace::DeviceWorkspace;
use crate::params::{Params, View, narrow};
use crate::shader::Shader;
use crate::step::{Axis, DispatchStep, Grid, Over};

/// Shape of the last router's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteShape {
    /// Experts of each row.
    pub(crate) top_k: usize,
    /// Experts of the layer.
    pub(crate) n_experts: usize,
}

/// Location of a matrix in an expert's slot, in words from the start of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotMatrix {
    /// Kind and shape.
    pub(crate) layout: MatrixLayout,
    /// First word of the codes or values.
    pub(crate) codes: u32,
    /// First word of the scales.
    pub(crate) scales: u32,
    /// First word of the biases.
    pub(crate) biases: u32,
}

/// Layout of an expert in its slot. Slot `s` begins at word `s * n_words` of the bound buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertSlotLayout {
    /// `[inner, hidden]`.
    pub(crate) gate: SlotMatrix,
    /// `[inner, hidden]`.
    pub(crate) up: SlotMatrix,
    /// `[hidden, inner]`.
    pub(crate) down: SlotMatrix,
    /// Words of a slot; a multiple of 64.
    pub(crate) n_words: u32,
}

impl ExpertSlotLayout {
    /// Returns the bytes of a slot.
    pub(crate) fn n_bytes(&self) -> u64 {
        u64::from(self.n_words) * 4
    }
}

/// Compiles one plan.
#[derive(Debug)]
pub(crate) struct PlanCompiler<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) config: &'a GpuConfig,
    pub(crate) weights: &'a DeviceWeights,
    pub(crate) workspace: &'a mut DeviceWorkspace,
    pub(crate) slots: &'a HashMap<LayerIdx, ExpertSlotLayout>,
    pub(crate) route: RouteShape,
    pub(crate) guess: Option<(View, RouteShape)>,
    pub(crate) steps: Vec<DispatchStep>,
}

impl PlanCompiler<'_> {
    /// Returns the device. Its limits and features determine which kernel is used.
    #[must_use]
    pub(crate) fn gpu(&self) -> &Gpu {
        self.gpu
    }

    /// Returns the smallest and largest subgroup, if kernels may use them.
    #[must_use]
    pub(crate) fn subgroup_sizes(&self) -> Option<(u32, u32)> {
        self.gpu.facts().subgroup_sizes.filter(|_| self.config().uses_subgroups)
    }

    /// Returns the configuration.
    #[must_use]
    pub(crate) fn config(&self) -> &GpuConfig {
        self.config
    }

    /// Returns the upper bound on rows of a batch, for which scratch is sized.
    #[must_use]
    pub(crate) fn n_rows_max(&self) -> u32 {
        narrow(self.workspace.n_rows_max)
    }

    /// Returns the location of head values.
    #[must_use]
    pub(crate) fn view(&self, heads: &Heads) -> View {
        self.workspace.view(heads)
    }

    /// Returns the offset of a vector in `vectors`; a multiple of 4.
    #[must_use]
    pub(crate) fn vector(&self, id: VectorId) -> u32 {
        self.weights.vector(id)
    }

    /// Returns a resident matrix.
    #[must_use]
    pub(crate) fn matrix(&self, id: MatrixId) -> DeviceMatrix {
        self.weights.matrix(id).clone()
    }

    /// Returns the layout of a layer's experts in their slots.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the layout of the layer's experts is unknown.
    pub(crate) fn slot_layout(&self, layer: LayerIdx) -> Result<ExpertSlotLayout> {
        self.slots.get(&layer).copied().ok_or_else(|| {
            Error::Unsupported(format!("no experts of layer {} are on the device", layer.0))
        })
    }

    /// Returns the shape of the last router's output in `routes`: row `r`, rank `k` at
    /// `r * top_k + k`, as (expert, bits of the weight), ascending by expert within a row.
    #[must_use]
    pub(crate) fn route(&self) -> RouteShape {
        self.route
    }

    /// Sets the shape of a router's output, before its steps.
    pub(crate) fn set_route(&mut self, route: RouteShape) {
        self.route = route;
    }

    /// Sets the location of a router's guess: experts and weights, row by row.
    pub(crate) fn set_guess(&mut self, guess: (View, RouteShape)) {
        self.guess = Some(guess);
    }

    /// Returns `n_cols` values per row in the workspace, shared under this name by ops of all
    /// plans. They outlive a plan: an op can read what an earlier op stored there.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if the workspace cannot grow.
    pub(crate) fn scratch(&mut self, name: &'static str, n_cols: usize) -> Result<View> {
        self.workspace.scratch(self.gpu, name, (narrow(n_cols), RowSet::All))
    }

    /// Returns such scratch for the same set of rows as `heads`.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if the workspace cannot grow.
    pub(crate) fn scratch_beside(
        &mut self,
        heads: &Heads,
        name: &'static str,
        n_cols: usize,
    ) -> Result<View> {
        let rows = self.workspace.activation(heads.buffer).rows;
        self.workspace.scratch(self.gpu, name, (narrow(n_cols), rows))
    }

    /// Appends a dispatch over all rows, to be refined by the caller.
    ///
    /// # Errors
    ///
    /// None at present: the driver compiles a kernel on its first use.
    pub(crate) fn step(
        &mut self,
        shader: &Shader,
        params: &impl Params,
        grid: Grid,
    ) -> Result<&mut DispatchStep> {
        let pipeline = self.gpu.pipeline(shader);
        self.steps.push(DispatchStep {
            name: shader.name(),
            pipeline,
            params: params.words(),
            grid,
            over: Over::Rows,
            weights: None,
            n_rows: 1..=u32::MAX,
            parts_along: Axis::Z,
            splits: None,
            merges: false,
            among: None,
        });
        Ok(self.steps.last_mut().expect("one was just pushed"))
    }
}
