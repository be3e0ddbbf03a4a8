//! `moeflux completions`: what a shell needs to complete commands and options.

use clap::{Args, Command};
use clap_complete::{Shell, generate};

/// What `moeflux completions` is told.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompletionsArgs {
    /// For which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// The script, for the command with all that belongs to it.
pub(crate) fn run(args: &CompletionsArgs, mut command: Command) -> String {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(args.shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).trim_end().to_owned()
}
