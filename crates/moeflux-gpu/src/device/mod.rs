//! An opened GPU: buffers, pipelines, and their failures as engine errors.
//!
//! **Invariant:** no call or callback panics. The driver's first report is kept, and the next
//! [`Gpu::check`] returns it as one line. Besides `host_import.rs` the only file of this crate with
//! `unsafe`.

mod kept;
pub(crate) mod pipeline;
pub(crate) mod mapping;
pub mod profile;
pub(crate) mod recorder;
pub(crate) mod read_back;
pub(crate) mod staging;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::error::{Error, Remedy, Result};

use crate::adapter::{Adapter, AdapterFacts, MATRIX_FEATURES, block_on};
use crate::config::{GpuConfig, MATRIX_WORKGROUP_BYTES, Matrices, MatrixUnit};
use crate::host_import;
use crate::shader::{Layouts, Shader};
use kept::PipelineCacheFile;
use pipeline::KernelPipeline;
use profile::Profile;

/// Uploads wait for the device after this many bytes, to bound the memory of pending copies.
const UPLOAD_BYTES_MAX: usize = 64 << 20;

/// An opened GPU, shared by all backends on it.
#[derive(Debug)]
pub struct Gpu {
    facts: AdapterFacts,
    limits: wgpu::Limits,
    device: wgpu::Device,
    queue: wgpu::Queue,
    failure: Arc<Mutex<Option<String>>>,
    layouts: Layouts,
    pipelines: Mutex<HashMap<String, Arc<KernelPipeline>>>,
    /// Bytes uploaded since the last wait for the device.
    pending_bytes: AtomicUsize,
    /// Kernel times, if profiling is enabled.
    profile: Mutex<Option<Profile>>,
    /// Result of the matrix unit's trial.
    trusts_matrices: OnceLock<bool>,
    pipeline_cache: OnceLock<PipelineCacheFile>,
}

#[expect(unsafe_code, reason = "wgpu leaves it to the caller to promise that loops end")]
impl Gpu {
    /// Opens an adapter with all its useful features.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if its driver refuses.
    pub fn open(adapter: &Adapter) -> Result<Arc<Self>> {
        let facts = adapter.facts().clone();
        let useful = wgpu::Features::IMMEDIATES
            | wgpu::Features::SUBGROUP
            | wgpu::Features::SHADER_F16
            | wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES
            | wgpu::Features::MAPPABLE_PRIMARY_BUFFERS
            | wgpu::Features::PIPELINE_CACHE;
        let (matrices, experimental_features) = if facts.matrix_edge.is_some() {
            // SAFETY: the caller must accept that bugs of wgpu in experimental features may be
            // undefined behaviour, and must report those it finds. We do, for the only such feature
            // that is asked for: cooperative matrices. Kernels use them as their specification
            // says: by whole subgroups, within bounds, in uniform flow.
            (MATRIX_FEATURES, unsafe { wgpu::ExperimentalFeatures::enabled() })
        } else {
            (wgpu::Features::empty(), wgpu::ExperimentalFeatures::disabled())
        };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("moeflux"),
            required_features: adapter.inner.features() & (useful | matrices),
            required_limits: adapter.inner.limits(),
            experimental_features,
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            trace: wgpu::Trace::Off,
        };
        let (device, queue) = match host_import::open(&adapter.inner, &descriptor) {
            Some(opened) => opened,
            None => block_on(adapter.inner.request_device(&descriptor)).map_err(|e| {
                let problem = format!("the driver cannot open it: {}", one_line(&e.to_string()));
                Error::Device { device: facts.name.clone(), problem, remedy: None }
            })?,
        };
        let failure = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&failure);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            note(&seen, format!("the driver refused a call: {}", one_line(&error.to_string())));
        }));
        let seen = Arc::clone(&failure);
        device.set_device_lost_callback(move |_, message| {
            note(&seen, format!("the device was lost: {}; start again", one_line(&message)));
        });
        let limits = device.limits();
        let layouts = Layouts::new(&device);
        let pipelines = Mutex::default();
        let pending_bytes = AtomicUsize::new(0);
        Ok(Arc::new(Self {
            facts,
            limits,
            device,
            queue,
            failure,
            layouts,
            pipelines,
            pending_bytes,
            profile: Mutex::default(),
            trusts_matrices: OnceLock::new(),
            pipeline_cache: OnceLock::new(),
        }))
    }

    /// Returns the adapter's description and capabilities.
    #[must_use]
    pub fn facts(&self) -> &AdapterFacts {
        &self.facts
    }

    /// Caches compiled kernels in a file of this folder, if the driver supports it, and uses those
    /// already there from now on.
    pub fn cache_pipelines(&self, folder: &Path) {
        let path = kept::path_of(folder, &self.device.adapter_info());
        let has_caches = self.device.features().contains(wgpu::Features::PIPELINE_CACHE);
        let Some(path) = path.filter(|_| has_caches) else { return };
        self.pipeline_cache.get_or_init(|| {
            let data = kept::read(&path);
            let descriptor = wgpu::PipelineCacheDescriptor {
                label: None,
                data: data.as_deref(),
                fallback: true,
            };
            // SAFETY: the bytes must be what `PipelineCache::get_data` returned: only such bytes
            // are written to the file, and `kept::read` returns them only if their checksum is
            // right. It does not detect a forged file. wgpu itself refuses bytes of another adapter
            // or driver.
            let cache = unsafe { self.device.create_pipeline_cache(&descriptor) };
            PipelineCacheFile::new(cache, path, data.as_deref())
        });
    }

    /// Writes that file, if kernels were compiled that it does not hold.
    pub(crate) fn save_pipelines(&self) {
        if let Some(file) = self.pipeline_cache.get() {
            // A full or read-only disk must not prevent computing.
            file.save().ok();
        }
    }

    /// Times the kernels of all backends created from now on, to find slow ones.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the adapter has no timestamps within passes.
    pub fn begin_profile(&self) -> Result<()> {
        let needed = wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES;
        if !self.device.features().contains(needed) {
            return Err(self.error("its driver does not support timestamps between kernels"));
        }
        *lock(&self.profile) = Some(Profile::new());
        Ok(())
    }

    /// Returns the kernel times since the last call.
    pub fn take_profile(&self) -> Profile {
        lock(&self.profile).as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn is_profiled(&self) -> bool {
        lock(&self.profile).is_some()
    }

    pub(crate) fn add_to_profile(&self, add: &mut dyn FnMut(&mut Profile)) {
        if let Some(profile) = &mut *lock(&self.profile) {
            add(profile);
        }
    }

    /// Returns the wgpu device, for benchmarks.
    #[must_use]
    pub fn device(&self) -> &wgpu::Device {
        &self.device
    }

    /// Returns the wgpu queue, for benchmarks.
    #[must_use]
    pub fn queue(&self) -> &wgpu::Queue {
        &self.queue
    }

    pub(crate) fn layouts(&self) -> &Layouts {
        &self.layouts
    }

    /// Returns the device's half-precision matrix unit, if it has one.
    pub(crate) fn matrix_unit(&self) -> Option<MatrixUnit> {
        let has_room = self.facts.workgroup_bytes_max >= MATRIX_WORKGROUP_BYTES;
        self.facts.matrix_edge.filter(|_| has_room).map(|_| MatrixUnit::Cooperative)
    }

    /// Returns the matrix unit for such a backend, if its products may round to half precision.
    pub(crate) fn matrix_unit_for(&self, config: &GpuConfig) -> Option<MatrixUnit> {
        let unit = match config.matrices {
            Matrices::OfDevice => self.matrix_unit(),
            Matrices::Emulated => self.facts.has_f16.then_some(MatrixUnit::Plain),
        };
        unit.filter(|_| config.arithmetic == Arithmetic::F16Staged)
    }

    /// Returns the result of the unit's trial, which runs on the first call.
    ///
    /// # Errors
    ///
    /// Errors of the trial. The next call repeats it.
    pub(crate) fn trusts_matrices(&self, agree: &dyn Fn() -> Result<bool>) -> Result<bool> {
        match self.trusts_matrices.get() {
            Some(known) => Ok(*known),
            None => agree().map(|agree| *self.trusts_matrices.get_or_init(|| agree)),
        }
    }

    /// Returns the upper bound on workgroups along one axis.
    pub(crate) fn n_groups_max(&self) -> u32 {
        self.limits.max_compute_workgroups_per_dimension
    }

    /// Returns the size of the largest storage buffer that a kernel can bind as a whole.
    pub(crate) fn storage_bytes_max(&self) -> u64 {
        self.limits.max_storage_buffer_binding_size.min(self.limits.max_buffer_size)
    }

    /// Reports the first failure so far, if any.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the driver reported a failure.
    pub fn check(&self) -> Result<()> {
        match &*lock(&self.failure) {
            None => Ok(()),
            Some(problem) => Err(self.error(problem)),
        }
    }

    pub(crate) fn error(&self, problem: &str) -> Error {
        let (device, problem) = (self.facts.name.clone(), problem.to_owned());
        Error::Device { device, problem, remedy: None }
    }

    /// Allocates a zeroed buffer; `what` names it in messages.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if the buffer is too large or memory is exhausted; [`Error::Device`] after
    /// a failure.
    pub(crate) fn buffer(
        &self,
        what: &str,
        n_bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer> {
        // Buffers that only the host writes are filled immediately.
        let mapped_at_creation = usage.contains(wgpu::BufferUsages::MAP_WRITE);
        // Empty bindings are not allowed.
        let size = n_bytes.max(16).next_multiple_of(16);
        let no_room = |what: String, available_bytes| Error::NoRoom {
            what: format!("{what} on {}", self.facts.name),
            needed_bytes: n_bytes,
            available_bytes,
            needs: Vec::new(),
            remedy: Remedy::Cpu,
        };
        let largest = match usage.contains(wgpu::BufferUsages::STORAGE) {
            true => self.storage_bytes_max(),
            false => self.limits.max_buffer_size,
        };
        if size > largest {
            return Err(no_room(format!("{what} as one buffer"), Some(largest)));
        }
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let descriptor =
            wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation };
        let buffer = self.device.create_buffer(&descriptor);
        match block_on(scope.pop()) {
            Some(_) => Err(no_room(format!("{what} in the remaining memory"), None)),
            None => self.check().map(|()| buffer),
        }
    }

    /// Returns whether kernels can read host memory.
    pub(crate) fn sees_host(&self) -> bool {
        self.device.features().contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS)
    }

    /// Returns the pipeline of a shader, one for each text.
    pub(crate) fn pipeline(&self, shader: &Shader) -> Arc<KernelPipeline> {
        let text = shader.text();
        let mut pipelines = lock(&self.pipelines);
        if let Some(known) = pipelines.get(&text) {
            return Arc::clone(known);
        }
        let pipeline = Arc::new(KernelPipeline::new(shader, text.clone()));
        pipelines.insert(text, Arc::clone(&pipeline));
        pipeline
    }

    /// Compiles a kernel with the driver.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the driver rejects it.
    pub(crate) fn make(&self, pipeline: &KernelPipeline) -> Result<wgpu::ComputePipeline> {
        let KernelPipeline { name, text, groups, .. } = pipeline;
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let source = wgpu::ShaderSource::Wgsl(text.as_str().into());
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some(name), source };
        let mut checks = wgpu::ShaderRuntimeChecks::checked();
        checks.force_loop_bounding = false;
        // SAFETY: without this check, every loop must end. Each loop of our shaders adds a constant
        // to a counter, or doubles or halves it, until it reaches a bound that the loop does not
        // change. Bounds are far below 2^32, so that no counter wraps. All other checks stay on.
        let module = unsafe { self.device.create_shader_module_trusted(descriptor, checks) };
        let made = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(self.layouts.of(&self.device, *groups).as_ref()),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..wgpu::PipelineCompilationOptions::default()
            },
            cache: self.pipeline_cache.get().map(|file| &file.cache),
        });
        match block_on(scope.pop()) {
            Some(error) => {
                Err(self.error(&format!("kernel {name}: {}", one_line(&error.to_string()))))
            }
            None => Ok(made),
        }
    }

    /// Writes to a buffer before all later submissions.
    pub(crate) fn write(&self, buffer: &wgpu::Buffer, offset_bytes: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.queue.write_buffer(buffer, offset_bytes, bytes);
        }
    }

    /// Writes large data to a buffer, with a bounded number of bytes in flight. An end that is no
    /// multiple of four is padded with zeros.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the device fails while it is waited for.
    pub(crate) fn upload(
        &self,
        buffer: &wgpu::Buffer,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let mut at = offset_bytes;
        for piece in bytes.chunks(UPLOAD_BYTES_MAX) {
            let (whole, rest) = piece.split_at(piece.len() & !3);
            self.write(buffer, at, whole);
            if !rest.is_empty() {
                let mut last = [0; 4];
                last[..rest.len()].copy_from_slice(rest);
                self.write(buffer, at + whole.len() as u64, &last);
            }
            at += piece.len() as u64;
            let pending_bytes = self.pending_bytes.fetch_add(piece.len(), Ordering::Relaxed);
            if pending_bytes + piece.len() >= UPLOAD_BYTES_MAX {
                self.queue.submit([]);
                self.wait()?;
            }
        }
        Ok(())
    }

    /// Waits until the device has completed all submissions.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the driver reports a failure.
    pub fn wait(&self) -> Result<()> {
        self.pending_bytes.store(0, Ordering::Relaxed);
        self.wait_for(None)
    }

    /// Processes completed work, without waiting.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the driver reports a failure.
    pub(crate) fn poll(&self) -> Result<()> {
        self.polled(wgpu::PollType::Poll)
    }

    /// Waits for a submission, or for all of them.
    pub(crate) fn wait_for(&self, submission_index: Option<wgpu::SubmissionIndex>) -> Result<()> {
        self.polled(wgpu::PollType::Wait { submission_index, timeout: None })
    }

    fn polled(&self, poll: wgpu::PollType) -> Result<()> {
        let polled = self.device.poll(poll);
        self.check()?;
        polled.map_err(|e| self.error(&format!("waiting for the device failed: {e}")))?;
        Ok(())
    }
}

fn note(failure: &Mutex<Option<String>>, message: String) {
    // The first failure is the cause of the others.
    lock(failure).get_or_insert(message);
}

/// Locks a mutex. Its value is consistent even if a holder panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
