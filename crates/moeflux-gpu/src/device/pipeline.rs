//! A kernel's text, and what the driver made of it.
//!
//! Made when it is first needed: a plan has kernels for every number of rows, and most steps of a
//! test or a short answer need few of them. **Invariant:** one text is made once.

use std::sync::OnceLock;

use moeflux::provider::error::Result;

use crate::device::Gpu;
use crate::shader::{Groups, Shader};

/// A kernel that may have been made.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    pub(crate) groups: Groups,
    made: OnceLock<wgpu::ComputePipeline>,
}

impl Pipeline {
    pub(crate) fn new(shader: &Shader, text: String) -> Self {
        Self { name: shader.name(), text, groups: shader.groups(), made: OnceLock::new() }
    }

    /// Made now, if it is not yet.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::Device`] when the driver does not take it.
    pub(crate) fn made(&self, gpu: &Gpu) -> Result<&wgpu::ComputePipeline> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let made = gpu.make(self)?;
        Ok(self.made.get_or_init(|| made))
    }
}
