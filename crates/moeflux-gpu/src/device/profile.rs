//! Device time of each kernel, by timestamps between dispatches.
//!
//! **Invariant:** no cost unless profiling is enabled. A profiled device is waited for after each
//! submission. The time of a dispatch counts from the end of the preceding one, so it includes any
//! wait between the two.

use std::collections::BTreeMap;

use moeflux::provider::error::Result;

use crate::device::Gpu;
use crate::device::mapping::{Mapping, copy_mapped};

/// Timed dispatches of one submission; further ones are not timed.
const N_TIMED_MAX: u32 = 1024;

/// Time of a kernel so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelTime {
    /// Number of dispatches.
    pub n: u64,
    /// Total time.
    pub ns: f64,
}

/// Times by kernel name.
pub type Profile = BTreeMap<&'static str, KernelTime>;

/// Times the dispatches of a recorder.
#[derive(Debug)]
pub(crate) struct Profiler {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    mapped: wgpu::Buffer,
    /// Names of the dispatches since the last submission.
    names: Vec<&'static str>,
}

impl Profiler {
    pub(crate) fn new(gpu: &Gpu) -> Result<Self> {
        let n_bytes = u64::from(N_TIMED_MAX + 1) * 8;
        let resolve = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let map = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        Ok(Self {
            queries: gpu.device().create_query_set(&wgpu::QuerySetDescriptor {
                label: None,
                ty: wgpu::QueryType::Timestamp,
                count: N_TIMED_MAX + 1,
            }),
            resolved: gpu.buffer("timestamps", n_bytes, resolve)?,
            mapped: gpu.buffer("timestamps", n_bytes, map)?,
            names: Vec::new(),
        })
    }

    /// Begins a pass.
    pub(crate) fn begin(&self, pass: &mut wgpu::ComputePass<'static>) {
        if self.names.is_empty() {
            pass.write_timestamp(&self.queries, 0);
        }
    }

    /// Notes a recorded dispatch.
    pub(crate) fn note(&mut self, pass: &mut wgpu::ComputePass<'static>, name: &'static str) {
        let n_noted = crate::params::narrow(self.names.len());
        if n_noted < N_TIMED_MAX {
            self.names.push(name);
            pass.write_timestamp(&self.queries, n_noted + 1);
        }
    }

    /// Records the last commands of a submission, which read the timestamps.
    pub(crate) fn end(&self, encoder: &mut wgpu::CommandEncoder) {
        let n_bytes = (self.names.len() as u64 + 1) * 8;
        let n_queries = crate::params::narrow(self.names.len()) + 1;
        encoder.resolve_query_set(&self.queries, 0..n_queries, &self.resolved, 0);
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.mapped, 0, n_bytes);
    }

    /// Adds the times of the submission to the profile.
    pub(crate) fn collect(&mut self, gpu: &Gpu, index: wgpu::SubmissionIndex) -> Result<()> {
        let mut ticks = vec![0_u64; self.names.len() + 1];
        let mapping = Mapping::begin(&self.mapped, wgpu::MapMode::Read);
        while !mapping.is_done(gpu)? {
            gpu.wait_for(Some(index.clone()))?;
        }
        copy_mapped(gpu, &self.mapped, bytemuck::cast_slice_mut(&mut ticks))?;
        let ns_per_tick = f64::from(gpu.queue().get_timestamp_period());
        gpu.add_to_profile(&mut |profile| {
            for (name, pair) in self.names.iter().zip(ticks.windows(2)) {
                let took = profile.entry(name).or_default();
                took.n += 1;
                took.ns += pair[1].saturating_sub(pair[0]) as f64 * ns_per_tick;
            }
        });
        self.names.clear();
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}
