//! A kernel's text, and the pipeline that the driver compiles from it.
//!
//! Compiled on first use: a plan has kernels for every number of rows, and most steps of a test or
//! a short answer need few of them. **Invariant:** each text is compiled once.

use std::sync::OnceLock;

use moeflux::provider::error::Result;

use crate::device::Gpu;
use crate::shader::{BindGroups, Shader};

/// A kernel, compiled or not.
#[derive(Debug)]
pub(crate) struct KernelPipeline {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    pub(crate) groups: BindGroups,
    compiled: OnceLock<wgpu::ComputePipeline>,
}

impl KernelPipeline {
    pub(crate) fn new(shader: &Shader, text: String) -> Self {
        Self { name: shader.name(), text, groups: shader.groups(), compiled: OnceLock::new() }
    }

    /// Returns the compiled pipeline; compiles it on the first call.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::Device`] if the driver rejects the kernel.
    pub(crate) fn compiled(&self, gpu: &Gpu) -> Result<&wgpu::ComputePipeline> {
        if let Some(compiled) = self.compiled.get() {
            return Ok(compiled);
        }
        let compiled = gpu.make(self)?;
        Ok(self.compiled.get_or_init(|| compiled))
    }
}
