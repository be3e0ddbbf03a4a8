//! `moeflux generate`: a prompt in, text out as it comes.

use std::io::Read;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use moeflux::provider::config::CONTEXT_DEFAULT;
use moeflux::{
    Engine, Error, Event, Finish, Message, ModelText, Result, StopStrings, TemplateOptions,
    TokenId, Tokenizer,
};
use serde_json::{Value, json};

use crate::args::ModelArgs;
use crate::clock;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::model;
use crate::print::{self, Reader};
use crate::progress::{Bar, tokens_done};
use crate::ranges;
use crate::sampling::SamplingArgs;
use crate::stats::Stats;
use crate::think::EmptyThink;

/// Bytes of a prompt from stdin: far beyond any context.
const STDIN_BYTES_MAX: u64 = 64 << 20;

/// What `moeflux generate` is told.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct GenerateArgs {
    /// Text to continue; `-` reads it from stdin
    prompt: String,
    #[command(flatten)]
    model: ModelArgs,
    /// Maximum number of tokens to generate
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 256)]
    n_tokens: usize,
    /// Tokens that the session has room for [default: as many as the prompt and -n need, at least
    /// 4096]
    #[arg(long, value_name = "N")]
    context: Option<NonZeroUsize>,
    /// Format the prompt with the model's chat template, as a message of the user; an empty think
    /// block before the answer is not printed
    #[arg(long)]
    chat: bool,
    /// System message before the prompt
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Request an answer without reasoning from the template
    #[arg(long, requires = "chat")]
    no_think: bool,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = ranges::stop)]
    stop: Vec<String>,
    /// Also print special tokens and an empty think block
    #[arg(long)]
    special: bool,
    /// Print speed, memory and time to the first token on stderr
    #[arg(long)]
    stats: bool,
    /// Print one JSON object at the end instead of text
    #[arg(long)]
    json: bool,
    // Last: its heading holds for all that follows.
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Runs the command. All that can be refused is refused before the weights are read.
pub(crate) fn run(args: &GenerateArgs) -> Outcome {
    let interrupt = Interrupt::listen();
    let stops = StopStrings::new(args.stop.clone())
        .map_err(|error| Failure::Usage(format!("--stop: {error}")))?;
    let prompt = read_prompt(&args.prompt)?;
    let dir = &model::path(args.model.model.as_deref())?;
    let spec = model::spec(dir)?;
    let text = ModelText::open(dir, spec.vocab)?;
    let tokens = encode(args, &text, &prompt)?;
    let sampling = args.sampling.config(&text);
    let seed = sampling.seed;
    let mut generation =
        text.generation(sampling, args.n_tokens)?.with_stops(stops).cancelled_by(interrupt.flag());
    if args.special {
        generation = generation.with_special_text();
    }
    let needed = tokens.len().saturating_add(args.n_tokens).max(CONTEXT_DEFAULT);
    let context = model::context_for(&spec, args.context, needed)?;
    model::check_tokens(&spec, &tokens, context)?;

    let before_load = clock::instant();
    let engine = model::open(dir, &args.model, context, &interrupt)?;
    model::check_same(&spec, &engine, dir)?;
    let load = before_load.elapsed();
    let mut session = engine.session(context)?;
    let mut answer = Answer::new(args, text.tokenizer(), (load, tokens.len(), &engine));
    let finish = generation.run(&mut session, &tokens, &mut |event| answer.hear(event, &interrupt));
    // Also of a run that was broken off: what was chosen until then is worth reading.
    engine.end_trace()?;
    let finish = finish?;
    Ok(answer.end(&engine, (seed, context), finish)?)
}

fn read_prompt(argument: &str) -> Result<String> {
    let prompt = if argument == "-" { read_stdin()? } else { argument.to_owned() };
    if prompt.is_empty() {
        return Err(Error::Input("the prompt is empty: give a text to continue".into()));
    }
    Ok(prompt)
}

fn read_stdin() -> Result<String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(STDIN_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::Input(format!("cannot read stdin: {error}")))?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        return Err(Error::Input(format!("the prompt has more than {STDIN_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::Input(format!("the prompt is not UTF-8 at byte {at}"))
    })
}

fn encode(args: &GenerateArgs, text: &ModelText, prompt: &str) -> Result<Vec<TokenId>> {
    if !args.chat {
        return text.prompt(prompt);
    }
    let system = args.system.as_deref().map(|text| Message::new("system", text));
    let messages: Vec<Message> = system.into_iter().chain([Message::new("user", prompt)]).collect();
    let options = TemplateOptions {
        enable_thinking: args.no_think.then_some(false),
        now_seconds: Some(clock::seconds_since_1970()),
        ..TemplateOptions::default()
    };
    text.chat_prompt_with(&messages, &options).map_err(|error| match error {
        Error::Unsupported(problem) => Error::Unsupported(format!("{problem}: leave --chat out")),
        other => other,
    })
}

/// An answer as it comes in, and when.
struct Answer<'a> {
    args: &'a GenerateArgs,
    tokenizer: &'a Tokenizer,
    engine: &'a Engine,
    think: EmptyThink,
    text: String,
    tokens: Vec<TokenId>,
    logprobs: Vec<Value>,
    stats: Stats,
    reading: Option<Bar>,
    output: Result<Reader>,
}

impl<'a> Answer<'a> {
    fn new(
        args: &'a GenerateArgs,
        tokenizer: &'a Tokenizer,
        (load, n_prompt_tokens, engine): (Duration, usize, &'a Engine),
    ) -> Self {
        let is_hidden = args.chat && !args.special;
        Self {
            args,
            tokenizer,
            engine,
            think: if is_hidden { EmptyThink::default() } else { EmptyThink::kept() },
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            stats: Stats::start(load, n_prompt_tokens),
            reading: None,
            output: Ok(Reader::Reads),
        }
    }

    fn hear(&mut self, event: Event<'_>, interrupt: &Interrupt) -> ControlFlow<()> {
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
                self.stats.token(self.args.json.then_some(self.engine));
                self.tokens.push(token);
                if let Some(logprob) = logprob {
                    self.logprobs.push(self.logprob_json((token, logprob), top));
                }
            }
            Event::Text(text) => {
                let text = self.think.push(text);
                self.write(&text);
            }
            _ => {}
        }
        let goes_on = matches!(self.output, Ok(Reader::Reads));
        if goes_on { interrupt.poll() } else { ControlFlow::Break(()) }
    }

    fn write(&mut self, text: &str) {
        self.text.push_str(text);
        if !text.is_empty() && !self.args.json && matches!(self.output, Ok(Reader::Reads)) {
            self.output = print::piece(text);
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

    fn end(mut self, engine: &Engine, (seed, context): (u64, usize), finish: Finish) -> Result<()> {
        // Still there if the prompt was not read to its end.
        self.reading = None;
        let held = self.think.finish();
        self.write(&held);
        if self.args.json {
            let tokens: Vec<u32> = self.tokens.iter().map(|token| token.0).collect();
            let mut object = json!({
                "text": self.text,
                "tokens": tokens,
                "finish": finish.name(),
                "seed": seed,
                "stats": self.stats.json(engine, context),
            });
            if !self.logprobs.is_empty() {
                object["logprobs"] = Value::Array(self.logprobs);
            }
            return print::line(&object.to_string());
        }
        if self.output? == Reader::Reads && !self.text.ends_with('\n') {
            print::line("")?;
        }
        if finish == Finish::ContextFull {
            eprintln!("note: the context of {context} tokens is full; --context sets it");
        }
        if self.args.stats {
            self.stats.print(engine, (seed, context, finish));
        }
        Ok(())
    }
}
