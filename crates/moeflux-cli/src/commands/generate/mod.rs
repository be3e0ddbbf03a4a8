//! `moeflux generate`: reads a prompt, streams the generated text.

mod answer_text;
mod saved;

use std::io::{Stdout, stdout};
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use moeflux::{
    CONTEXT_DEFAULT, Engine, Event, Finish, Model, Result, StopStrings, TextLimit, TokenId,
    Tokenizer,
};
use moeflux_chat::{Answer, AnswerPart, Chat, KeptAnswer, PreparedPrompt};
use moeflux_io::OneLine;
use moeflux_schedule::SavedConversations;
use serde_json::{Value, json};

use crate::commands::generate::answer_text::{AnswerFormatter, OutputPart, PrintedCall};
use crate::commands::generate::saved::{SavedTurn, open_cache};
use crate::failure::{CommandFailure, CommandResult};
use crate::model;
use crate::model::hub;
use crate::options::args::ModelArgs;
use crate::options::cache::CacheArgs;
use crate::options::prompt::{ConversationRequest, PromptArgs};
use crate::options::ranges;
use crate::options::sampling::SamplingArgs;
use crate::output::print;
use crate::output::progress::{Bar, tokens_done};
use crate::output::sanitizer::Sanitizer;
use crate::output::screen::code::CodeLines;
use crate::output::screen::style::{Span, Style};
use crate::output::screen::{Screen, device};
use crate::stats::GenerateStats;
use crate::system::clock;
use crate::system::interrupt::Interrupt;

/// The arguments of `moeflux generate`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    asked: PromptArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Maximum number of tokens to generate
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 256)]
    #[arg(value_parser = ranges::whole, allow_negative_numbers = true)]
    n_tokens: usize,
    /// Tokens that the session has room for [default: as many as the prompt and -n need, at least
    /// 4096]
    #[arg(long, value_name = "N", value_parser = ranges::tokens, allow_negative_numbers = true)]
    context: Option<NonZeroUsize>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = ranges::stop)]
    stop: Vec<String>,
    /// Also print special tokens and an empty think block, and tool calls as the model writes them
    #[arg(long)]
    special: bool,
    /// Print speed, memory and time to the first token on stderr
    #[arg(long)]
    stats: bool,
    /// Print one JSON object at the end instead of text
    #[arg(long)]
    json: bool,
    /// With --json: report log-probabilities of the chosen and the N most likely tokens
    #[arg(long, value_name = "N", value_parser = ranges::logprobs, requires = "json")]
    logprobs: Option<usize>,
    #[command(flatten)]
    cache: CacheArgs,
    // Last, because its help heading applies to all options that follow.
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Runs the command. Everything that can be refused is refused before the weights are read.
pub(crate) fn run(args: &GenerateArgs) -> CommandResult {
    let interrupt = Interrupt::listen();
    let stops = StopStrings::new(args.stop.clone())
        .map_err(|error| CommandFailure::Usage(format!("--stop: {error}")))?;
    let prompt = GenerateInput::read(&args.asked)?;
    let opened = model::open(&args.model)?;
    let saved = open_cache(&args.cache, args.asked.chat)?;
    let text = opened.text()?;
    let PromptTokens { tokens, prepared, chat } =
        prompt.tokens(&args.asked, &opened, saved.as_ref())?;
    // May be much larger than the tokens, and the engine's budget does not include it.
    drop(prompt);
    let mut sampling = args.sampling.config(&text);
    sampling.n_logprobs = args.logprobs;
    let seed = sampling.seed;
    let mut generation =
        text.generation(sampling, args.n_tokens)?.with_stops(stops).cancelled_by(interrupt.flag());
    if args.special {
        generation = generation.with_special_text();
    }
    let mask = prepared.as_ref().and_then(|prompt| prompt.mask.as_deref());
    let is_bound = mask.is_some();
    if let Some(mask) = mask {
        generation = generation.with_mask(mask.clone());
    }
    let needed = tokens.len().saturating_add(args.n_tokens).max(CONTEXT_DEFAULT);
    let context = model::context_for(&opened, args.context, needed)?;
    model::check_tokens(&opened, &tokens, context)?;

    let name = hub::name_of(opened.path());
    let before_load = clock::instant();
    let engine = model::load(opened, &args.model, context, &interrupt)?;
    let load = before_load.elapsed();
    let mut session = engine.session(context)?;
    let answer = prepared.as_ref().filter(|_| !args.special).map(PreparedPrompt::answer);
    let how = (text.tokenizer(), answer, is_bound);
    let mut output = Output::new(args, how, (load, tokens.len(), &engine));
    let mut turn = match (saved, &prepared) {
        (Some(saved), Some(prompt)) => {
            Some(SavedTurn::new((&engine, &name), saved, (&tokens, prompt))?)
        }
        _ => None,
    };
    if let Some(turn) = &mut turn {
        session = turn.begin(session, &interrupt)?;
        output.stats.loaded(turn.n_loaded());
    }
    let rest = &tokens[session.tokens().len()..];
    let finish =
        generation.run(&mut session, rest, &mut |event| output.on_event(event, &interrupt));
    // Also after an interrupted run: the routes recorded until then are useful.
    engine.end_trace()?;
    let finish = finish?;
    let read = output.stats.prompt_read;
    let kept = output.end(&engine, (seed, context), finish)?;
    if let (Some(chat), Some(kept)) = (chat, kept) {
        chat.keep(kept);
    }
    if let Some(turn) = turn {
        turn.save(&mut session, read);
    }
    if finish == Finish::Cancelled && interrupt.is_set() {
        return Err(CommandFailure::interrupted());
    }
    Ok(())
}

/// The prompt as the model reads it.
struct PromptTokens {
    tokens: Vec<TokenId>,
    /// The requirements of a conversation's answer.
    prepared: Option<PreparedPrompt>,
    /// Keeps the tokens of the answer, if conversations are saved.
    chat: Option<Chat>,
}

/// The input, before there is a model.
enum GenerateInput {
    Text(String),
    Chat(ConversationRequest),
}

impl GenerateInput {
    fn read(args: &PromptArgs) -> CommandResult<Self> {
        if args.chat {
            return Ok(Self::Chat(args.chat()?));
        }
        // Without a chat there are no messages, and a prompt is required.
        Ok(Self::Text(args.text()?.unwrap_or_default()))
    }

    fn tokens(
        &self,
        args: &PromptArgs,
        opened: &Model,
        saved: Option<&SavedConversations>,
    ) -> Result<PromptTokens> {
        let limit = &TextLimit { n_tokens_max: opened.context_max(), ..TextLimit::default() };
        match self {
            Self::Text(prompt) => {
                let tokens = opened.text()?.prompt_within(prompt, limit)?;
                Ok(PromptTokens { tokens, prepared: None, chat: None })
            }
            Self::Chat(request) => {
                let chat = Chat::open(opened)?;
                let chat = match saved {
                    Some(saved) => chat.with_saved(saved.clone())?,
                    // There is only one answer, so none is replayed.
                    None => chat.with_replays(0, 0),
                };
                let mut prepared = args.prepare(&chat, request, limit)?;
                let tokens = std::mem::take(&mut prepared.tokens);
                let chat = saved.is_some().then_some(chat);
                Ok(PromptTokens { tokens, prepared: Some(prepared), chat })
            }
        }
    }
}

/// An answer in progress, with its timing.
struct Output<'a> {
    args: &'a GenerateArgs,
    tokenizer: &'a Tokenizer,
    engine: &'a Engine,
    /// `None` if the text is printed unchanged.
    answer: Option<Answer>,
    formatter: AnswerFormatter,
    screen: Screen<Stdout>,
    sanitizer: Sanitizer,
    code: CodeLines,
    text: String,
    /// Only if they are printed at the end.
    calls: Vec<PrintedCall>,
    /// Names of tools whose calls were cut short.
    cut_calls: Vec<String>,
    /// Whether rules constrain the answer.
    is_bound: bool,
    tokens: Vec<TokenId>,
    logprobs: Vec<Value>,
    stats: GenerateStats,
    reading: Option<Bar>,
    output: Result<()>,
}

impl<'a> Output<'a> {
    fn new(
        args: &'a GenerateArgs,
        (tokenizer, answer, is_bound): (&'a Tokenizer, Option<Answer>, bool),
        (load, n_prompt_tokens, engine): (Duration, usize, &'a Engine),
    ) -> Self {
        Self {
            args,
            tokenizer,
            engine,
            answer,
            formatter: AnswerFormatter::default(),
            screen: Screen::new(stdout(), device::abilities(), device::n_columns()),
            sanitizer: Sanitizer::default(),
            code: CodeLines::default(),
            text: String::new(),
            calls: Vec::new(),
            cut_calls: Vec::new(),
            is_bound,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            stats: GenerateStats::start(load, n_prompt_tokens),
            reading: None,
            output: Ok(()),
        }
    }

    fn on_event(&mut self, event: Event<'_>, interrupt: &Interrupt) -> ControlFlow<()> {
        match event {
            Event::Reading(progress) => {
                let bar = || Bar::tokens("reading", progress.n_rows);
                let n_done = tokens_done(progress);
                self.reading.get_or_insert_with(bar).set(n_done);
            }
            Event::PromptRead => {
                self.reading = None;
                self.stats.prompt_read();
            }
            Event::Token { token, logprob, top, .. } => {
                self.stats.token(self.engine, self.args.json);
                self.tokens.push(token);
                if let Some(answer) = &mut self.answer {
                    let parts = answer.token(token, "");
                    self.write(parts);
                }
                if let Some(logprob) = logprob {
                    self.logprobs.push(self.logprob_json((token, logprob), top));
                }
            }
            Event::Text(text) => match &mut self.answer {
                Some(answer) => {
                    let parts = answer.text(text);
                    self.write(parts);
                }
                None => self.write_text(text),
            },
            _ => {}
        }
        let goes_on = self.output.is_ok() && self.screen.has_reader();
        if goes_on { interrupt.poll() } else { ControlFlow::Break(()) }
    }

    fn write(&mut self, parts: Vec<AnswerPart>) {
        for part in self.formatter.parts(parts) {
            match part {
                OutputPart::Text(text) => self.write_text(&text),
                OutputPart::Call(call) if self.args.json => self.calls.push(call),
                OutputPart::Call(call) => {
                    let is_line_start = self.text.is_empty() || self.text.ends_with('\n');
                    let before = if is_line_start { "" } else { "\n" };
                    self.write_text(&format!("{before}{}\n", call.line()));
                }
                OutputPart::CutCall(name) => self.cut_calls.push(name),
            }
        }
    }

    fn write_text(&mut self, text: &str) {
        self.text.push_str(text);
        let shown = match self.screen.is_terminal() {
            true => self.sanitizer.push(text),
            false => text.to_owned(),
        };
        self.show(&shown);
    }

    fn show(&mut self, shown: &str) {
        if !shown.is_empty() && !self.args.json && self.output.is_ok() {
            self.output = self.screen.text(&self.code.push(shown));
        }
    }

    fn logprob_json(&self, chosen: (TokenId, f32), top: &[(TokenId, f32)]) -> Value {
        let entry = |(token, logprob): (TokenId, f32)| {
            let text = self.tokenizer.token_text(token);
            json!({"token": token.0, "text": text, "logprob": logprob})
        };
        let mut object = entry(chosen);
        object["top"] = top.iter().copied().map(entry).collect();
        object
    }

    /// Returns the tokens of the answer, if they are kept for the history that comes back.
    fn end(
        mut self,
        engine: &Engine,
        (seed, context): (u64, usize),
        finish: Finish,
    ) -> Result<Option<KeptAnswer>> {
        // Still present if the prompt was not processed to its end.
        self.reading = None;
        if let Some(answer) = &mut self.answer {
            let held = answer.end("", finish);
            self.write(held);
        }
        let rest = self.sanitizer.finish();
        self.show(rest);
        std::mem::replace(&mut self.output, Ok(()))?;
        if self.args.json {
            print::line(&self.json(engine, (seed, context), finish).to_string())?;
            self.note_omissions(finish);
            return Ok(self.kept());
        }
        if !self.text.ends_with('\n') {
            self.screen.text(&[Span::new(Style::PLAIN, "\n")])?;
        }
        self.note_omissions(finish);
        if finish == Finish::ContextFull {
            print::stderr_line(&format!(
                "note: the context of {context} tokens is full; --context sets it"
            ));
        }
        if self.args.stats {
            self.stats.print(engine, (seed, context, finish), &self.hosts());
        }
        Ok(self.kept())
    }

    fn kept(self) -> Option<KeptAnswer> {
        self.answer?.finished().kept
    }

    /// Returns the hosts of the ranks, if there are any.
    fn hosts(&self) -> Vec<String> {
        self.args.model.group.as_ref().map_or_else(Vec::new, |group| group.topology().hosts)
    }

    fn json(&self, engine: &Engine, (seed, context): (u64, usize), finish: Finish) -> Value {
        let tokens: Vec<u32> = self.tokens.iter().map(|token| token.0).collect();
        let mut object = json!({
            "text": self.text,
            "tokens": tokens,
            "finish": finish.name(),
            "seed": seed,
            "stats": self.stats.json(engine, (context, &self.hosts())),
        });
        if !self.logprobs.is_empty() {
            object["logprobs"] = json!(self.logprobs);
        }
        if !self.calls.is_empty() {
            object["calls"] = self.calls.iter().map(PrintedCall::json).collect();
        }
        object
    }

    /// Notes omissions on stderr, since a reader of the JSON on stdout must know about them.
    fn note_omissions(&self, finish: Finish) {
        let way_out = if finish == Finish::Length { "; -n allows more tokens" } else { "" };
        for name in &self.cut_calls {
            let name = OneLine::name(name);
            print::stderr_line(&format!(
                "note: an incomplete call of `{name}` was not printed{way_out}"
            ));
        }
        if self.cut_calls.is_empty() && self.is_bound && finish != Finish::EndToken {
            print::stderr_line(&format!(
                "note: the answer was cut off, perhaps in the middle of JSON{way_out}"
            ));
        }
    }
}
