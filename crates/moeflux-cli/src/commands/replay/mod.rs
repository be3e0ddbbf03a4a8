//! `moeflux replay`: evaluates a routing trace with various amounts of memory, before buying any.
//!
//! **Invariant:** reads the trace only, no model; the same trace gives the same output.

mod report;
mod svg;
mod text;

use std::path::PathBuf;

use clap::Args;
use moeflux::Error;
use moeflux::provider::experts::trace::Trace;

use crate::failure::CommandResult;
use crate::system::out_file::OutFile;
use report::ReplayReport;

/// A larger number of slots is a typing error.
const N_SLOTS_MAX: usize = 1 << 24;

/// The arguments of `moeflux replay`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplayArgs {
    /// Routing trace that --trace wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Numbers of experts that fit into memory, separated by commas [default: from 1/16 of all
    /// experts to all]
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', value_parser = n_slots)]
    slots: Vec<usize>,
    /// Write a chart of the hit rates over memory to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
}

/// Replays the trace. Returns the text to print.
///
/// # Errors
///
/// Fails if the trace is invalid or the chart cannot be written.
pub(crate) fn run(args: &ReplayArgs) -> CommandResult<String> {
    let trace = Trace::open(&args.file)?;
    if trace.n_blocks() == 0 {
        let problem = "has no steps: record it while a model runs";
        return Err(Error::malformed(&args.file, problem).into());
    }
    let report = ReplayReport::new(&args.file, &trace, &budgets(args, &trace));
    if let Some(path) = &args.svg {
        let out = OutFile::new(path)?;
        std::fs::write(out.path(), svg::render(&report)).map_err(Error::io("write", path))?;
        out.finish()?;
    }
    Ok(if args.json { report.to_json().to_string() } else { text::render(&report) })
}

/// Returns the budgets in ascending order without duplicates.
fn budgets(args: &ReplayArgs, trace: &Trace) -> Vec<usize> {
    let n_experts = trace.header().n_experts();
    let mut budgets = args.slots.clone();
    if budgets.is_empty() {
        let sixteenths = [1, 2, 3, 4, 6, 8, 10, 12, 14, 16];
        budgets = sixteenths.map(|it| (n_experts * it / 16).max(1)).to_vec();
    }
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

fn n_slots(text: &str) -> Result<usize, String> {
    let parsed = text.trim().parse().ok().filter(|n| (1..=N_SLOTS_MAX).contains(n));
    parsed.ok_or_else(|| format!("give numbers of slots from 1 to {N_SLOTS_MAX}"))
}

#[cfg(test)]
mod tests;
