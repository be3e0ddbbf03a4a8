//! Measures the limits of a GPU, as a reference for other figures: copies in its memory, reads of
//! host memory, the cost of a dispatch and of a round trip.
//! `cargo run --release -p moeflux-gpu --example ceilings -- [GPU]`.
#![expect(clippy::print_stdout, reason = "an example prints its results")]
#![expect(clippy::disallowed_methods, reason = "it measures real time on a device")]

use std::time::{Duration, Instant};

use moeflux::provider::error::{Error, Result};
use moeflux_gpu::adapter::choose;
use moeflux_gpu::device::Gpu;

/// Rounds of each measurement, of which the median, the minimum and the maximum are printed.
const N_ROUNDS: usize = 9;

/// Bytes per copy.
const COPY_BYTES: u64 = 1 << 28;

/// Dispatches per measurement.
const N_DISPATCHES: u32 = 1000;

/// Round trips per measurement.
const N_ROUND_TRIPS: u32 = 50;

/// A nearly empty kernel that depends on the preceding dispatch.
const COUNT: &str = "@group(0) @binding(0) var<storage, read_write> words: array<vec4<u32>>;
    @compute @workgroup_size(1) fn main() { words[0].x += 1u; }";

/// Workgroups that read [`COPY_BYTES`], 16 bytes at a time.
const READ_GROUPS: u32 = 4096;

/// Each of 256 threads reads 16 values, adjacent to those of its neighbours.
const READ: &str = "@group(0) @binding(0) var<storage, read_write> words: array<vec4<u32>>;
    @compute @workgroup_size(256) fn main(
        @builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_index) thread: u32,
    ) {
        var sum = vec4<u32>();
        for (var i = 0u; i < 16u; i++) { sum ^= words[(group.x * 16u + i) * 256u + thread]; }
        if all(sum == vec4<u32>(1u, 2u, 3u, 4u)) { words[0] = sum; }
    }";

fn main() -> Result<()> {
    let wanted = std::env::args().nth(1);
    let gpu = Gpu::open(&choose(wanted.as_deref())?)?;
    println!("{}", gpu.facts());
    let bench = DeviceBench { device: gpu.device(), queue: gpu.queue() };
    let on_device = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
    // Buffers mapped for reading are in host memory.
    let pinned = on_device | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ;
    // Each byte is read and written.
    bench.copies("copies in its memory, read and written", on_device, 2.0)?;
    bench.reads("reads of its memory by a kernel", on_device)?;
    bench.copies("copies from pinned memory of the host", pinned, 1.0)?;
    bench.reads("reads of pinned memory by a kernel", pinned)?;
    bench.dispatches()?;
    bench.round_trips("round trips, one after the other", Duration::ZERO)?;
    bench.round_trips("round trips, each after 2 ms of rest", Duration::from_millis(2))
}

struct DeviceBench<'a> {
    device: &'a wgpu::Device,
    queue: &'a wgpu::Queue,
}

impl DeviceBench<'_> {
    fn buffer(&self, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        let descriptor =
            wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
        self.device.create_buffer(&descriptor)
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    /// Submits commands, and returns the time until they are complete.
    fn run(&self, encoder: wgpu::CommandEncoder) -> Result<Duration> {
        let commands = encoder.finish();
        let begin = Instant::now();
        self.queue.submit([commands]);
        let waited = self.device.poll(wgpu::PollType::wait_indefinitely());
        waited.map_err(|e| failed(&e.to_string()))?;
        Ok(begin.elapsed())
    }

    fn copies(&self, label: &str, usage: wgpu::BufferUsages, times: f64) -> Result<()> {
        let source = self.buffer(COPY_BYTES, usage);
        let target = self.buffer(COPY_BYTES, wgpu::BufferUsages::COPY_DST);
        let copy = |n: u32| {
            let mut encoder = self.encoder();
            for _ in 0..n {
                encoder.copy_buffer_to_buffer(&source, 0, &target, 0, COPY_BYTES);
            }
            self.run(encoder)
        };
        copy(2)?;
        let rounds = rounds(|| {
            // The cost of a submission is in both and cancels out.
            let (few, many) = (copy(1)?, copy(9)?);
            Ok(8.0 * COPY_BYTES as f64 * times / (many.as_secs_f64() - few.as_secs_f64()) / 1e9)
        })?;
        print(label, &rounds, "GB/s");
        Ok(())
    }

    fn reads(&self, label: &str, usage: wgpu::BufferUsages) -> Result<()> {
        let kernel = self.kernel(READ, &self.buffer(COPY_BYTES, usage));
        let read = |n: u32| self.dispatched(&kernel, (n, READ_GROUPS));
        read(2)?;
        let rounds = rounds(|| {
            let took = read(9)?.saturating_sub(read(1)?);
            Ok(8.0 * COPY_BYTES as f64 / took.as_secs_f64() / 1e9)
        })?;
        print(label, &rounds, "GB/s");
        Ok(())
    }

    /// Measures dependent dispatches of a nearly empty kernel.
    fn dispatches(&self) -> Result<()> {
        let kernel = self.kernel(COUNT, &self.buffer(16, wgpu::BufferUsages::STORAGE));
        let dispatch = |n: u32| self.dispatched(&kernel, (n, 1));
        dispatch(N_DISPATCHES)?;
        let rounds = rounds(|| {
            let took = dispatch(2 * N_DISPATCHES)?.saturating_sub(dispatch(N_DISPATCHES)?);
            Ok(took.as_secs_f64() * 1e6 / f64::from(N_DISPATCHES))
        })?;
        print("a dispatch after another", &rounds, "us");
        Ok(())
    }

    /// Creates a kernel and binds the buffer that it works on.
    fn kernel(
        &self,
        source: &'static str,
        buffer: &wgpu::Buffer,
    ) -> (wgpu::ComputePipeline, wgpu::BindGroup) {
        let source = wgpu::ShaderSource::Wgsl(source.into());
        let descriptor = wgpu::ShaderModuleDescriptor { label: None, source };
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &self.device.create_shader_module(descriptor),
            entry_point: None,
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }],
        });
        (pipeline, group)
    }

    /// Runs `n` dispatches of `n_groups` workgroups each, and returns the elapsed time.
    fn dispatched(
        &self,
        (pipeline, group): &(wgpu::ComputePipeline, wgpu::BindGroup),
        (n, n_groups): (u32, u32),
    ) -> Result<Duration> {
        let mut encoder = self.encoder();
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, group, &[]);
        (0..n).for_each(|_| pass.dispatch_workgroups(n_groups, 1, 1));
        drop(pass);
        self.run(encoder)
    }

    /// Measures round trips: from a submission until the host has the copied bytes.
    fn round_trips(&self, label: &str, rest: Duration) -> Result<()> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let (source, target) =
            (self.buffer(64, wgpu::BufferUsages::COPY_SRC), self.buffer(64, usage));
        let rounds = rounds(|| {
            let mut took = Duration::ZERO;
            for _ in 0..N_ROUND_TRIPS {
                if !rest.is_zero() {
                    std::thread::park_timeout(rest);
                }
                took += self.round_trip(&source, &target)?;
            }
            Ok(took.as_secs_f64() * 1e6 / f64::from(N_ROUND_TRIPS))
        })?;
        print(label, &rounds, "us");
        Ok(())
    }

    fn round_trip(&self, source: &wgpu::Buffer, target: &wgpu::Buffer) -> Result<Duration> {
        let begin = Instant::now();
        let mut encoder = self.encoder();
        encoder.copy_buffer_to_buffer(source, 0, target, 0, 64);
        self.queue.submit([encoder.finish()]);
        let (sender, receiver) = std::sync::mpsc::channel();
        target.map_async(wgpu::MapMode::Read, .., move |result| drop(sender.send(result)));
        let mapped = loop {
            self.device.poll(wgpu::PollType::Poll).map_err(|e| failed(&e.to_string()))?;
            if let Ok(result) = receiver.try_recv() {
                break result;
            }
        };
        mapped.map_err(|e| failed(&e.to_string()))?;
        let took = begin.elapsed();
        target.unmap();
        Ok(took)
    }
}

fn failed(problem: &str) -> Error {
    Error::Device { device: "the GPU".to_owned(), problem: problem.to_owned(), remedy: None }
}

/// Returns the figures of all rounds in ascending order.
fn rounds(mut round: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    let mut rounds = (0..N_ROUNDS).map(|_| round()).collect::<Result<Vec<f64>>>()?;
    rounds.sort_by(f64::total_cmp);
    Ok(rounds)
}

fn print(label: &str, rounds: &[f64], unit: &str) {
    let median = rounds[rounds.len() / 2];
    println!(
        "{label:44} {median:8.1} {unit} [{:.1} .. {:.1}]",
        rounds[0],
        rounds[rounds.len() - 1]
    );
}
