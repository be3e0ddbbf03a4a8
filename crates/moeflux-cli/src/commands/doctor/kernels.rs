//! `moeflux doctor --gpu-check`: compares the layers of models on the GPU with the CPU.
//!
//! **Invariant:** every difference is printed in full, so that it can be reported; a failure shows
//! in the exit status.

use std::path::Path;

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::model::Headers;
use moeflux::provider::weights::SyntheticKind;
use moeflux::{Error, Model, Result};
use moeflux_gpu::adapter::choose;
use moeflux_gpu::device::Gpu;

use crate::commands::plan::advice::PACKED;
use crate::failure::CommandResult;
use crate::model;
use crate::model::device::check_kinds;
use crate::model::gpu_check;
use crate::model::known;
use crate::output::print;
use crate::output::quiet::without_noise;
use crate::system::clock;

/// Together these models cover most operations and kinds of weights.
const KNOWN: [&str; 3] = ["gpt-oss-20b", "GLM-4.7-Flash", "Qwen3.6-35B-A3B"];

/// Checks the GPU with the layers of the model in `dir`, or of known models if there is none.
///
/// # Errors
///
/// [`Error::Device`] if a result differs; errors of the GPU or of the model's files.
pub(super) fn check(wanted: Option<&str>, dir: &Path) -> CommandResult {
    let models = match model::has_weights(dir)? {
        true => vec![(dir.display().to_string(), Model::open(dir)?.into_parts().0)],
        false => KNOWN.iter().map(|name| synthetic(name)).collect::<Result<_>>()?,
    };
    models.iter().try_for_each(|(_, blueprint)| check_kinds(blueprint))?;
    let adapter = without_noise(|| choose(wanted))?;
    print::line(&format!("{}, moeflux {}", adapter.facts(), env!("CARGO_PKG_VERSION")))?;
    let gpu = Gpu::open(&adapter)?;
    let mut n_off = 0;
    for (name, blueprint) in &models {
        let begin = clock::instant();
        let found = gpu_check::checked(&gpu, blueprint)?;
        let seconds = begin.elapsed().as_secs_f64();
        if found.is_empty() {
            print::line(&format!("{name}: same as on the CPU, {seconds:.1} s"))?;
            continue;
        }
        n_off += 1;
        print::line(&format!("{name}: {} differences, {seconds:.1} s", found.len()))?;
        found.iter().try_for_each(|line| print::line(&format!("  {line}")))?;
    }
    if n_off == 0 {
        return Ok(());
    }
    let problem = format!("layers of {n_off} of {} models differ from the CPU", models.len());
    let device = adapter.facts().name.clone();
    Err(Error::Device { device, problem, remedy: None }.into())
}

/// Returns the blueprint of a known model, quantised as published or else to four bits.
fn synthetic(name: &str) -> Result<(String, Blueprint)> {
    let known = known::named(Path::new(name)).expect("the name of a known model");
    let config = known.config()?;
    let kind = match config.published_kind()? {
        SyntheticKind::Float => PACKED,
        published => published,
    };
    Ok((known.name.to_owned(), config.blueprint(kind)?))
}
