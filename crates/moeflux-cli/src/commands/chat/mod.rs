//! `moeflux chat`: a conversation in the terminal.
//!
//! * `inline` and `markdown` turn text into styled text for the screen. Neither depends on a model.
//! * `type_ahead` holds text typed during an answer, `keys` and `terminal` wrap the device,
//!   `signals` handles signals, `editor` is the prompt.
//! * `commands` is the table of commands, `transcript` the turns so far, `file` the files of both.
//! * `session` is the whole chat. It owns a `console`, a `conversation`, the `next_input` and the
//!   `model`. `answer` runs one answer, `display` shows it, `stats` has its statistics.

mod inline;
mod markdown;
mod type_ahead;
mod keys;
mod terminal;
mod signals;
mod commands;
mod transcript;
mod file;
mod editor;
mod console;
mod conversation;
mod next_input;
mod model;
mod display;
mod stats;
mod answer;
mod session;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use moeflux::StopStrings;

use crate::commands::chat::answer::AnswerSettings;
use crate::commands::chat::console::ChatConsole;
use crate::commands::chat::editor::{Editor, PromptTarget};
use crate::commands::chat::model::ModelSlot;
use crate::commands::chat::session::TerminalChat;
use crate::commands::chat::terminal::Terminal;
use crate::failure::{CommandFailure, CommandResult};
use crate::options::args::ModelArgs;
use crate::options::cache::{CacheArgs, CacheUse, OpenedCache};
use crate::options::ranges;
use crate::options::sampling::SamplingArgs;

/// The arguments of `moeflux chat`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without a terminal, each line of stdin is a message or a command, and the \
    answers are plain text: `echo \"What does Vec::push do?\" | moeflux chat`"
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// JSON file with a conversation to continue, as `messages` of the OpenAI API; /save writes one
    #[arg(long, value_name = "FILE")]
    messages: Option<PathBuf>,
    /// JSON file with the tools that answers may call, as `tools` of the OpenAI API. No tool is run
    /// automatically: you are asked for the result of each call
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Ask the template for answers with reasoning
    #[arg(long, conflicts_with = "no_think")]
    think: bool,
    /// Ask the template for answers without reasoning
    #[arg(long)]
    no_think: bool,
    /// Maximum number of tokens of an answer [default: as many as the context has room for]
    #[arg(short = 'n', long = "max-tokens", value_name = "N")]
    #[arg(value_parser = ranges::whole, allow_negative_numbers = true)]
    n_tokens: Option<usize>,
    /// Tokens that the conversation has room for [default: 65536, or the model's limit if that is
    /// lower]
    #[arg(long, value_name = "N", value_parser = ranges::tokens, allow_negative_numbers = true)]
    context: Option<NonZeroUsize>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = ranges::stop)]
    stop: Vec<String>,
    /// Do not save what you type in a history file in the user's cache folder, nor the conversation
    /// unless --cache-dir is given
    #[arg(long)]
    no_history: bool,
    #[command(flatten)]
    cache: CacheArgs,
    // Last, because its help heading applies to all options that follow.
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Runs the command. Everything that can be refused is refused before the weights are read.
pub(crate) fn run(args: &ChatArgs) -> CommandResult {
    if args.model.trace.is_some() {
        let problem = "--trace: a chat writes no trace; `moeflux generate` does";
        return Err(CommandFailure::Usage(problem.to_owned()));
    }
    let stops = StopStrings::new(args.stop.clone())
        .map_err(|error| CommandFailure::Usage(format!("--stop: {error}")))?;
    let settings = AnswerSettings {
        sampling: args.sampling.clone(),
        n_tokens_max: args.n_tokens,
        stops,
        thinking: (args.think || args.no_think).then_some(args.think),
        n_answers: 0,
    };
    let terminal = Terminal::open();
    let editor = match (terminal.is_edited(), terminal.is_typed, terminal.abilities) {
        (true, ..) => Editor::interactive(!args.no_history)?,
        (false, true, Some(_)) => Editor::Plain(PromptTarget::Stdout),
        (false, true, None) => Editor::Plain(PromptTarget::Stderr),
        (false, false, _) => Editor::Plain(PromptTarget::Nowhere),
    };
    let mut console = ChatConsole::new(terminal, editor);
    let (saved, greeting) = match args.cache.open(&cache_use(args))? {
        OpenedCache::Open(saved, line) => (Some(saved), Some(line)),
        OpenedCache::Refused(line) => {
            console.note(&line)?;
            (None, None)
        }
        OpenedCache::Off => (None, None),
    };
    let model = ModelSlot::new(args.model.clone(), args.context, saved);
    let mut chat = TerminalChat::new(model, settings, console);
    if let Some(path) = &args.messages {
        chat.load(path)?;
    }
    if let Some(text) = &args.system {
        chat.set_system(text);
    }
    if let Some(path) = &args.tools {
        chat.offer_tools(path)?;
    }
    chat.open(args.model.model.as_deref())?;
    chat.run(greeting.as_deref())
}

fn cache_use(args: &ChatArgs) -> CacheUse<'static> {
    CacheUse {
        owner_names: &[],
        off: args.no_history.then_some("with --no-history this needs --cache-dir"),
    }
}
