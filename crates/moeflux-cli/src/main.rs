//! The `moeflux` command: reads arguments, runs one subcommand, says on one line what went wrong.
//!
//! Exit status: 0 done, 1 failed, 2 wrong use. Results go to stdout, everything else to stderr.
#![expect(clippy::print_stderr, reason = "what a command says besides its result goes there")]

mod args;
mod bare_config;
mod bench;
mod cache;
mod clock;
mod device;
mod disk;
mod doctor;
mod eval;
mod failure;
mod generate;
mod inspect;
mod interrupt;
mod logits;
mod machine;
mod measured;
mod model;
mod out_file;
mod pack;
mod place;
mod plan;
mod print;
mod progress;
mod ranges;
mod replay;
mod sampling;
mod size;
mod stats;
mod stream;
mod streaming;
mod synth;
#[cfg(test)]
mod test_dir;
mod think;
mod tiers;
mod verify;
mod windows;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::failure::Outcome;
use crate::interrupt::Interrupt;

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}{}", failure.hint());
            failure.exit_code()
        }
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Generate(args) => generate::run(&args),
        Command::Logits(args) => logits::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Replay(args) => Ok(print::line(&replay::run(&args)?)?),
        Command::Inspect(args) => Ok(print::line(&inspect::run(&args)?)?),
        Command::Doctor(args) => doctor::run(&args, &Interrupt::listen()),
        Command::Plan(args) => Ok(print::line(&plan::run(&args)?)?),
        Command::Synth(args) => {
            let interrupt = Interrupt::listen();
            Ok(print::line(&synth::run(&args, interrupt.flag())?)?)
        }
        Command::Pack(args) => Ok(print::line(&pack::run(&args, &Interrupt::listen())?)?),
        Command::Verify(args) => verify::run(&args, &Interrupt::listen()),
    }
}
