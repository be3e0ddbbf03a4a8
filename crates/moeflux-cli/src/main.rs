//! The `moeflux` command.

mod size;
mod progress;
mod bare_config;
mod inspect;
mod synth;
#[cfg(test)]
mod test_dir;

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::Parser;

#[derive(Parser)]
enum Command {
    /// Describe a model
    Inspect(inspect::InspectArgs),
    /// Make a random checkpoint
    Synth(synth::SynthArgs),
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "this is where output happens")]
fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Inspect(args) => inspect::run(&args),
        Command::Synth(args) => synth::run(&args, &AtomicBool::new(false)),
    };
    match done {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
