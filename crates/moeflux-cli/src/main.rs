//! The `moeflux` command: parses arguments, runs one subcommand, reports an error on one line.
//!
//! Exit status: 0 success, 1 failure, 2 wrong usage, 130 ended by Ctrl-C. Results go to stdout,
//! everything else to stderr.
//!
//! ```text
//! failure.rs  how commands fail            model/     names, configs, caches; opens models
//! random.rs   random numbers by index      ranks/     several processes with one model
//! output/     prints, draws the screen     stats/     times and memory of answers
//! system/     clock, files, signals        commands/  one file or folder per command
//! options/    shared options
//! ```

mod failure;
mod random;
mod output;
mod system;
mod options;
mod model;
mod ranks;
mod stats;
mod commands;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use moeflux::provider::ranks::RankGroup;

use crate::commands::{
    bench, chat, completions, doctor, eval, generate, inspect, list, logits, pack, plan, prefix,
    pull, replay, rm, serve, synth, tokenize, verify,
};
use crate::failure::{CommandFailure, CommandResult};
use crate::model::fetch;
use crate::options::args::{ModelArgs, RankArgs};
use crate::options::{environment, tips};
use crate::output::print;
use crate::system::interrupt::Interrupt;
use crate::system::signals;

/// Runs Mixture-of-Experts language models, including those larger than memory
#[derive(Debug, Parser)]
#[command(name = "moeflux", version, about, max_term_width = 100)]
#[command(after_help = "Exit code: 0 on success; 1 if a run failed, with a line on stderr that \
    gives the reason; 2 after wrong usage; 130 after Ctrl-C, when `generate` and `bench` print \
    what they have by then. If an option is repeated, the last one counts, unless its help says \
    that it may be given several times.")]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

/// One thing to do.
#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Continue a prompt and print the text as it is generated
    Generate(generate::GenerateArgs),
    /// Chat with a model in the terminal; answers appear as they are computed
    Chat(chat::ChatArgs),
    /// Serve a model over HTTP, to clients of the OpenAI and Anthropic APIs
    Serve(serve::args::ServeArgs),
    /// Download a model from the Hugging Face hub to the cache shared with other tools
    Pull(pull::PullArgs),
    /// List the models in the cache of the Hugging Face hub
    List(list::ListArgs),
    /// Remove a model from the cache of the Hugging Face hub
    Rm(rm::RmArgs),
    /// Manage the conversations that `serve` and `chat` save on a drive
    Prefix(prefix::PrefixArgs),
    /// Show the tokens of a text, or the text of tokens
    Tokenize(tokenize::TokenizeArgs),
    /// Write the logits of every token to a .npy file (float32 [n_tokens, vocab])
    Logits(logits::LogitsArgs),
    /// Compute perplexity and bits per byte of texts; optionally compare two backends or two models
    Eval(eval::EvalArgs),
    /// Measure how fast a model reads prompts and generates answers
    Bench(bench::BenchArgs),
    /// Compute hit rates for other memory budgets and policies from a routing trace
    Replay(replay::ReplayArgs),
    /// Show the geometry and sizes of a model, from its headers or a config only
    Inspect(inspect::InspectArgs),
    /// Estimate, before a download, what a model needs and how fast it will run
    Plan(plan::PlanArgs),
    /// Describe this machine and measure its drive, CPU and GPU, with advice on problems
    Doctor(doctor::DoctorArgs),
    /// Create a checkpoint of a given geometry with random weights, for tests; it generates noise
    Synth(synth::SynthArgs),
    /// Rewrite a checkpoint so that each expert is read in one piece, with checksums; can quantise
    Pack(pack::PackArgs),
    /// Read every byte of a model and compare it with its checksums, if it has any
    Verify(verify::VerifyArgs),
    /// Print a script that lets a shell complete commands, options and names of models
    Completions(completions::CompletionsArgs),
}

fn main() -> ExitCode {
    match completions::complete(Cli::command) {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(failure) => return fail(&failure),
    }
    let mut command = match parse() {
        Ok(cli) => cli.command,
        Err(error) => return refuse(&error),
    };
    if matches!(command, CliCommand::Serve(_)) {
        signals::block_nonterminating();
    }
    let joined = command.ranks().map_or(Ok(None), |args| ranks::join(&args));
    let group = match joined {
        Ok(group) => group,
        Err(failure) if ranks::reports_errors() => return fail(&failure),
        Err(failure) => {
            ranks::let_rank_0_report();
            return failure.exit_code();
        }
    };
    if let Some(group) = &group {
        if group.topology().rank > 0 {
            if follow(&mut command, group) {
                return ExitCode::SUCCESS;
            }
            ranks::let_rank_0_report();
            return ExitCode::FAILURE;
        }
        lead(&mut command, group);
    } else {
        match fetch_missing(&mut command) {
            Ok(None) => {}
            Ok(Some(code)) => return code,
            Err(failure) => return fail(&failure),
        }
    }
    match (run(command), &group) {
        (Ok(()), _) => ExitCode::SUCCESS,
        (Err(failure), None) => fail(&failure),
        // This was reported when it happened.
        (Err(failure), Some(group)) if group.is_broken() => failure.exit_code(),
        (Err(failure), Some(group)) => {
            ranks::end(group, &failure);
            failure.exit_code()
        }
    }
}

/// Finds or downloads the models that a command names. Returns the code of a failed download.
fn fetch_missing(command: &mut CliCommand) -> CommandResult<Option<ExitCode>> {
    let Some(args) = command.model() else { return Ok(None) };
    let yes = args.yes;
    let fetched = fetch::missing(&mut args.model, yes)?;
    match command {
        CliCommand::Eval(args) if fetched.is_none() => fetch::missing(&mut args.compare_model, yes),
        _ => Ok(fetched),
    }
}

/// Executes the steps of rank 0. Returns whether all went well.
fn follow(command: &mut CliCommand, group: &RankGroup) -> bool {
    match command.model() {
        Some(args) => {
            args.group = Some(group.clone());
            ranks::follow(group, args)
        }
        None => doctor::exchanges::measure(group).is_ok(),
    }
}

/// Passes the other ranks to the command of rank 0.
fn lead(command: &mut CliCommand, group: &RankGroup) {
    match command {
        CliCommand::Doctor(args) => args.group = Some(group.clone()),
        other => {
            if let Some(args) = other.model() {
                ranks::send_heartbeats(group, &args.ranks);
                args.group = Some(group.clone());
            }
        }
    }
}

/// Prints the failure. Returns the exit code.
fn fail(failure: &CommandFailure) -> ExitCode {
    print::stderr_line(failure.line().trim_end());
    failure.exit_code()
}

/// Parses the command line.
fn parse() -> Result<Cli, clap::Error> {
    let matches = command().try_get_matches()?;
    Cli::from_arg_matches(&matches)
}

/// Returns all commands; options of the server can also be environment variables.
fn command() -> Command {
    // As with most commands, so that an alias may have options that are repeated.
    let command = Cli::command().args_override_self(true);
    // Not `mut_subcommand`: that moves the command to the end of the help.
    command.mut_subcommands(|it| match it.get_name() {
        "serve" => environment::name_options(it),
        _ => it,
    })
}

/// Prints an error in the command line, or the requested help. Returns the exit code.
fn refuse(error: &clap::Error) -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned()).collect();
    // clap parses `-hf` as `-h`, and would print the help.
    let is_refused = error.use_stderr() || args.iter().any(|it| it == "-hf");
    if let Some(tip) = tips::of(&args).filter(|_| is_refused) {
        return fail(&CommandFailure::Usage(tip.into_owned()));
    }
    if let Some(variable) = environment::source_of(error, &args) {
        print::stderr_line(&format!("note: the value comes from the variable {variable}"));
    }
    let is_evil = |it: OsString| it.to_string_lossy().contains(moeflux_io::is_harmful);
    if error.use_stderr() && std::env::args_os().any(is_evil) {
        // A script may pass on untrusted names. Escaping them loses the colours.
        print::stderr_line(error.render().to_string().trim_end());
    } else {
        // If printing fails, there is no way to report it.
        drop(error.print());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
}

impl CliCommand {
    /// Returns how ranks run the command, if they run it together.
    fn ranks(&mut self) -> Option<RankArgs> {
        match self {
            Self::Doctor(_) => Some(RankArgs::USUAL),
            other => other.model().map(|args| args.ranks.clone()),
        }
    }

    /// Returns the model options of a command that runs a model.
    fn model(&mut self) -> Option<&mut ModelArgs> {
        match self {
            Self::Generate(args) => Some(&mut args.model),
            Self::Chat(args) => Some(&mut args.model),
            Self::Serve(args) => Some(&mut args.model),
            Self::Logits(args) => Some(&mut args.model),
            Self::Eval(args) => Some(&mut args.model),
            Self::Bench(args) => Some(&mut args.model),
            Self::Prefix(args) => args.model(),
            _ => None,
        }
    }
}

fn run(command: CliCommand) -> CommandResult {
    match command {
        CliCommand::Generate(args) => generate::run(&args),
        CliCommand::Chat(args) => chat::run(&args),
        CliCommand::Serve(args) => serve::run(&args),
        CliCommand::Tokenize(args) => Ok(print::line(&tokenize::run(&args)?)?),
        CliCommand::Logits(args) => logits::run(&args),
        CliCommand::Eval(args) => eval::run(&args),
        CliCommand::Bench(args) => bench::run(&args),
        CliCommand::Replay(args) => Ok(print::line(&replay::run(&args)?)?),
        CliCommand::Inspect(args) => Ok(print::line(&inspect::run(&args)?)?),
        CliCommand::Doctor(args) => doctor::run(&args, &Interrupt::listen()),
        CliCommand::Plan(args) => Ok(print::line(&plan::run(&args)?)?),
        CliCommand::Synth(args) => {
            let interrupt = Interrupt::listen();
            Ok(print::line(&synth::run(&args, interrupt.flag())?)?)
        }
        CliCommand::Pack(args) => Ok(print::line(&pack::run(&args, &Interrupt::listen())?)?),
        CliCommand::Verify(args) => verify::run(&args, &Interrupt::listen()),
        CliCommand::Pull(args) => Ok(print::line(&pull::run(&args)?)?),
        CliCommand::List(args) => Ok(print::line(&list::run(&args)?)?),
        CliCommand::Rm(args) => Ok(print::line(&rm::run(&args)?)?),
        CliCommand::Prefix(args) => prefix::run(&args),
        CliCommand::Completions(args) => Ok(print::line(&completions::run(&args)?)?),
    }
}

#[cfg(test)]
mod help_page_tests;
