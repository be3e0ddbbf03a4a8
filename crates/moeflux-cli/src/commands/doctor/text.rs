//! The doctor's report as aligned text.
//!
//! **Invariant:** unknown values have no line.

use moeflux::ByteCount;
use moeflux::provider::error::grouped;

use super::drive::{AccessMethod, DEPTHS, DriveRates, ProbedFiles};
use super::gpu;
use super::report::DoctorReport;
use super::system::{LockLimit, System};
use crate::output::fold::point;
use crate::output::page::Labels;
use crate::output::size::binary;
use crate::system::compute_profile::ComputeProfile;
use crate::system::measurements::MeasuredDevice;

/// Width of the labels in every section.
const LABELS: Labels = Labels(14);

/// Width of an access method's name.
const WAY_WIDTH: usize = 26;

/// Renders the report, without a newline at its end.
pub(super) fn render(report: &DoctorReport) -> String {
    let mut lines = machine(report);
    lines.push(String::new());
    lines.extend(drive(report));
    if let Ok(drive_rates) = &report.drive_rates {
        lines.push(String::new());
        lines.extend(rates(drive_rates));
    }
    if let Some(exchanges) = &report.exchanges {
        lines.push(String::new());
        lines.extend(exchanges.lines());
    }
    let (verdict, warnings) = (report.verdict(), report.warnings());
    if !(verdict.is_empty() && warnings.is_empty()) {
        lines.push(String::new());
    }
    lines.extend(verdict.iter().flat_map(|it| point(it)));
    lines.extend(warnings.iter().flat_map(|it| point(&format!("warning: {it}"))));
    lines.join("\n")
}

fn machine(report: &DoctorReport) -> Vec<String> {
    let system = &report.system;
    let mut lines = vec!["machine".to_owned()];
    let cpu = format!("{}, {} cores", system.machine.cpu(), system.machine.n_cores());
    lines.extend(LABELS.row("cpu", &cpu));
    if !system.features.is_empty() {
        lines.extend(LABELS.row("features", &system.features.join(" ")));
    }
    let others = system.kernels_available.iter().filter(|name| **name != system.kernels);
    let others: Vec<&str> = others.copied().collect();
    let also = match others.is_empty() {
        true => String::new(),
        false => format!(" (also: {})", others.join(", ")),
    };
    lines.extend(LABELS.row("kernels", &format!("{}{also}", system.kernels)));
    lines.extend(LABELS.row("memory", &memory(system)));
    if let Some(group) = &system.group {
        let text = format!(
            "limit {}, used {} ({}, version {})",
            binary(group.limit_bytes),
            binary(group.used_bytes),
            group.folder.display(),
            group.version
        );
        lines.extend(LABELS.row("control group", &text));
    }
    if let Some(rate) = report.memory_bytes_per_s {
        let text = format!("{:.1} GB/s read by all cores", rate / 1e9);
        lines.extend(LABELS.row("memory rate", &text));
    }
    if let Some(Ok(profile)) = &report.trials.cpu {
        lines.extend(LABELS.row("computing", &computing(profile)));
        let floats = profile.prompt_float_operations_per_s / 1e9;
        let read = profile.answer_float_bytes_per_s / 1e9;
        let plain = profile.answer_plain_bytes_per_s / 1e9;
        let text = format!(
            "with FP8: {read:.1} GB/s of weights, {floats:.0} GOP/s; with bf16: {plain:.1} GB/s"
        );
        lines.extend(LABELS.row("", &text));
    }
    lines.extend(huge_pages(system).into_iter().flat_map(|text| LABELS.row("huge pages", &text)));
    if cfg!(target_os = "linux") {
        lines.extend(LABELS.row("io_uring", system.ring_problem.as_deref().unwrap_or("works")));
    }
    let root = if system.is_root { ", which does not apply to root" } else { "" };
    let locked = system.lock_limit.map(|limit| match limit {
        LockLimit::Bytes(n_bytes) => format!("{} at most{root}", binary(n_bytes)),
        LockLimit::Unlimited => "no limit".to_owned(),
    });
    lines.extend(locked.into_iter().flat_map(|text| LABELS.row("locked memory", &text)));
    let gpus = report.gpus.iter().enumerate();
    lines
        .extend(gpus.flat_map(|(idx, facts)| LABELS.row(&format!("gpu {idx}"), &gpu::text(facts))));
    if let Some(Ok(card)) = &report.trials.card {
        let MeasuredDevice { profile, name, .. } = &card.computing;
        lines.extend(LABELS.row("computing", &format!("on {name}: {}", computing(profile))));
        let [far, prompts] =
            [profile.far_bytes_per_s, profile.far_prompt_bytes_per_s].map(|it| it / 1e9);
        let times = [profile.step_s, profile.layer_s, profile.streamed_layer_s];
        let [step, layer, streamed] = times.map(|it| it * 1e6);
        let text = format!(
            "{step:.0} us more for a token, {layer:.0} for each layer, {streamed:.0} if its \
             experts are streamed; reads {far:.1} GB/s of the host's memory, {prompts:.1} for \
             prompts"
        );
        lines.extend(LABELS.row("", &text));
    }
    lines
}

fn computing(profile: &ComputeProfile) -> String {
    let [answers, prompts] =
        [profile.answer_bytes_per_s / 1e9, profile.prompt_operations_per_s / 1e9];
    format!("answers read {answers:.1} GB/s of weights, prompts take {prompts:.0} GOP/s")
}

fn memory(system: &System) -> String {
    let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), binary);
    let (all, available) = (known(system.machine.memory_bytes()), known(system.available_bytes));
    format!("{all}, available now {available}")
}

fn huge_pages(system: &System) -> Option<String> {
    let pages = &system.huge_pages;
    let mode = pages.transparent.as_ref()?;
    let reserved = pages.n_free.zip(pages.page_bytes).map(|(n_free, page_bytes)| {
        format!("; {} reserved ones of {} free", grouped(n_free), binary(page_bytes))
    });
    Some(format!("transparent: {mode}{}", reserved.unwrap_or_default()))
}

fn drive(report: &DoctorReport) -> Vec<String> {
    let mut lines = vec![format!("drive of {}", report.dir.display())];
    if let Some(mount) = &report.volume.mount {
        let text = format!("{} of {} at {}", mount.kind, mount.source, mount.point.display());
        lines.extend(LABELS.row("file system", &text));
    }
    if let Some(device) = &report.volume.device {
        let mut facts = vec![device.name.clone()];
        facts.extend(device.model.clone());
        let sizes = [
            ("logical blocks of", device.logical_block_bytes),
            ("physical of", device.physical_block_bytes),
            ("read-ahead", device.read_ahead_bytes),
        ];
        let sizes = sizes
            .iter()
            .filter_map(|(what, bytes)| bytes.map(|bytes| format!("{what} {}", binary(bytes))));
        facts.extend(sizes);
        lines.extend(LABELS.row("device", &facts.join(", ")));
    }
    let Ok(drive_rates) = &report.drive_rates else { return lines };
    let direct = match drive_rates.direct_block_bytes {
        Some(bytes) => format!("at multiples of {}", binary(bytes as u64)),
        None => "not on this file system".to_owned(),
    };
    lines.extend(LABELS.row("direct reads", &direct));
    let mut probed = match drive_rates.probed {
        ProbedFiles::Model(n_files, n_bytes) => {
            let files = if n_files == 1 { "file" } else { "files" };
            format!("{n_files} {files} of the model, {}", ByteCount(n_bytes).rounded())
        }
        ProbedFiles::Folder(n_files, n_bytes) => {
            let files = if n_files == 1 { "file" } else { "files" };
            let size = ByteCount(n_bytes).rounded();
            format!("{n_files} {files} with weights, {size}, no runnable model")
        }
        ProbedFiles::Temporary(n_bytes) => {
            format!("a temporary file of {}, just written", ByteCount(n_bytes).rounded())
        }
    };
    if drive_rates.is_repeated {
        probed.push_str("; some places were read again");
    }
    lines.extend(LABELS.row("read from", &probed));
    lines
}

fn rates(drive_rates: &DriveRates) -> Vec<String> {
    let cells = |cells: Vec<String>| cells.iter().map(|it| format!("{it:>8}")).collect::<String>();
    let depths = DEPTHS.iter().map(ToString::to_string).collect();
    let mut lines = vec![format!("{:<WAY_WIDTH$}{}", "GB/s by reads in flight", cells(depths))];
    lines.extend(drive_rates.methods.iter().map(|method: &AccessMethod| {
        let rates = method.bytes_per_s.iter().map(|rate| format!("{:.2}", rate / 1e9)).collect();
        format!("  {:<width$}{}", method.name(), cells(rates), width = WAY_WIDTH - 2)
    }));
    lines
}
