//! Checks a GPU before a model with new layers first runs on it, and keeps the result.
//!
//! **Invariant:** a GPU whose results differ from the CPU's is not used; a check that could not be
//! completed is not kept.

use std::sync::Arc;

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::error::Remedy;
use moeflux::{Error, Result};
use moeflux_gpu::adapter::{AdapterFacts, AdapterKind};
use moeflux_gpu::check::{differences, layers_fingerprint};
use moeflux_gpu::device::Gpu;

use crate::output::print;
use crate::system::clock;
use crate::system::measurements::Measurements;

/// Checks a GPU with the layers of a model, unless this was done before with the same driver and
/// version. Software drivers are not checked: they are used only by explicit request, and are slow.
///
/// # Errors
///
/// [`Error::Device`] if its results differ from the CPU's; errors of the GPU.
pub(crate) fn check(gpu: &Arc<Gpu>, blueprint: &Blueprint) -> Result<()> {
    let facts = gpu.facts();
    if facts.kind == AdapterKind::Software {
        return Ok(());
    }
    let known = Measurements::load().gpu_check(&key_of(facts, blueprint));
    let found = match known {
        Some(found) => found,
        None => {
            print::stderr_line(&format!(
                "note: checking {} once with the layers of this model",
                facts.name
            ));
            let begin = clock::instant();
            let found = checked(gpu, blueprint)?;
            let seconds = begin.elapsed().as_secs_f64();
            if found.is_empty() {
                print::stderr_line(&format!(
                    "note: checked in {seconds:.1} s: same results as on the CPU"
                ));
            }
            found
        }
    };
    verdict(&facts.name, &found)
}

fn verdict(name: &str, differences: &[String]) -> Result<()> {
    let Some(first) = differences.first() else { return Ok(()) };
    let problem = format!(
        "its results differ from the CPU's ({first}); `moeflux doctor --gpu-check MODEL` prints \
         all differences"
    );
    Err(Error::Device { device: name.to_owned(), problem, remedy: Some(Remedy::Cpu) })
}

/// Checks a GPU and keeps the differences found, one line each.
///
/// # Errors
///
/// Errors of the GPU.
pub(crate) fn checked(gpu: &Arc<Gpu>, blueprint: &Blueprint) -> Result<Vec<String>> {
    let found = differences(gpu, blueprint)?;
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    // Loaded again because the check took a while.
    let mut measured = Measurements::load();
    measured.set_gpu_check(&key_of(gpu.facts(), blueprint), &found);
    if let Err(error) = measured.save() {
        print::stderr_line(&format!("note: cannot save the result of the check: {error}"));
    }
    Ok(found)
}

/// Returns the adapter with its driver, this version, and the layers.
fn key_of(facts: &AdapterFacts, blueprint: &Blueprint) -> String {
    format!("{facts}, {}, {:016x}", env!("CARGO_PKG_VERSION"), layers_fingerprint(blueprint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_differs_is_refused_with_the_first_difference() {
        assert!(verdict("X 100", &[]).is_ok());
        let refused = verdict("X 100", &["layer 3: 1 of 150 rows differ".into(), "b".into()]);
        let message = refused.unwrap_err().to_string();
        let expected = "X 100: its results differ from the CPU's (layer 3: 1 of 150 rows \
                        differ); `moeflux doctor --gpu-check MODEL` prints all differences";
        assert!(message.starts_with(expected), "{message}");
    }
}
