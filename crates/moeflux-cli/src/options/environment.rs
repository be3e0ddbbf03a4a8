//! Options that can be given as environment variables.

use clap::Command;
use clap::error::{ContextKind, ContextValue};

use crate::system::cache;

/// Allows each option of a command to be given as a variable: `--api-key-file` as
/// `MOEFLUX_API_KEY_FILE`. The command line takes precedence.
pub(crate) fn name_options(command: Command) -> Command {
    command.mut_args(|arg| match arg.get_long().map(variable) {
        Some(name) if arg.get_id() != "help" => arg.env(name).hide_env(true),
        _ => arg,
    })
}

/// Returns the variable that a refused value comes from, if its option was not typed.
pub(crate) fn source_of(error: &clap::Error, args: &[String]) -> Option<String> {
    let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else { return None };
    let option = arg.split([' ', '=']).next()?;
    let name = variable(option.strip_prefix("--")?);
    let is_typed = args.iter().any(|it| it.split('=').next() == Some(option));
    (!is_typed && cache::variable(&name).is_some()).then_some(name)
}

fn variable(option: &str) -> String {
    format!("MOEFLUX_{}", option.to_uppercase().replace('-', "_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_named_by_options() {
        assert_eq!(variable("api-key-file"), "MOEFLUX_API_KEY_FILE");
    }
}
