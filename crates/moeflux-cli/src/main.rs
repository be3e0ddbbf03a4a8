//! The `moeflux` command: reads arguments, runs one subcommand, says on one line what went wrong.
//!
//! Exit status: 0 done, 1 failed, 2 wrong use. Results go to stdout, everything else to stderr.

mod args;
mod eval;
mod interrupt;
mod logits;
mod model;
mod progress;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Command::Logits(args) => logits::run(&args),
        Command::Eval(args) => eval::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
