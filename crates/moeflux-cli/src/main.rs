//! The `moeflux` command: reads arguments, runs one subcommand, says on one line what went wrong.
//!
//! Exit status: 0 done, 1 failed, 2 wrong use. Results go to stdout, everything else to stderr.
#![expect(clippy::print_stderr, reason = "what a command says besides its result goes there")]

mod args;
mod bare_config;
mod clock;
mod eval;
mod generate;
mod inspect;
mod interrupt;
mod logits;
mod model;
mod print;
mod progress;
mod sampling;
mod size;
mod stats;
mod synth;
#[cfg(test)]
mod test_dir;

use std::process::ExitCode;

use clap::Parser;
use moeflux::error::Result;

use crate::args::{Cli, Command};
use crate::interrupt::Interrupt;

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Generate(args) => generate::run(&args),
        Command::Logits(args) => logits::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Inspect(args) => inspect::run(&args).and_then(|text| print::line(&text)),
        Command::Synth(args) => {
            let interrupt = Interrupt::listen();
            synth::run(&args, interrupt.flag()).and_then(|text| print::line(&text))
        }
    }
}
