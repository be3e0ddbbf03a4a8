//! `moeflux generate`: a prompt in, text out as it comes.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::time::Duration;

use clap::Args;
use moeflux::engine::Engine;
use moeflux::error::{Error, Result};
use moeflux::generate::{Event, Finish, Generation};
use moeflux::ids::TokenId;
use moeflux::sample::Sampler;
use moeflux::text::{
    ChatTemplate, EndTokens, Message, SpecialText, StopStrings, TemplateOptions, TextStream,
    Tokenizer,
};
use serde_json::{Value, json};

use crate::args::ModelArgs;
use crate::clock;
use crate::interrupt::Interrupt;
use crate::model;
use crate::print;
use crate::sampling::SamplingArgs;
use crate::stats::Stats;

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
    /// Tokens to generate at most
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 256)]
    n_tokens: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Put the prompt through the model's chat template, as a user's message
    #[arg(long)]
    chat: bool,
    /// System message in front of it
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// Ask the template for an answer without reasoning
    #[arg(long, requires = "chat")]
    no_think: bool,
    /// End before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Print special tokens too
    #[arg(long)]
    special: bool,
    /// Print speed, memory and time to the first token on stderr
    #[arg(long)]
    stats: bool,
    /// Print one JSON object at the end instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &GenerateArgs) -> Result<()> {
    let started = clock::instant();
    let interrupt = Interrupt::listen();
    let prompt = read_prompt(&args.prompt)?;
    let engine = model::open(&args.model, &interrupt)?;
    let dir = &args.model.model;
    let tokenizer = Tokenizer::open(dir, engine.spec().vocab)?;
    let tokens = encode(args, &tokenizer, &prompt)?;
    let end_tokens = EndTokens::open(dir, &tokenizer)?;
    let config = args.sampling.config(dir)?;
    let mut sampler = Sampler::new(config, engine.spec().vocab)?;
    let context = model::context_for(&engine, &args.model, tokens.len() + args.n_tokens);
    let mut session = engine.session(context)?;
    let special = if args.special { SpecialText::Shown } else { SpecialText::Hidden };
    let generation = Generation {
        session: &mut session,
        sampler: &mut sampler,
        stream: TextStream::new(&tokenizer, special),
        stops: StopStrings::new(args.stop.clone())?,
        end_tokens: &end_tokens,
        n_tokens_max: args.n_tokens,
    };

    let mut answer = Answer::new(args, &tokenizer, (started.elapsed(), tokens.len()));
    let finish = generation.run(&tokens, &mut |event| answer.hear(event, &interrupt))?;
    answer.end(&engine, (sampler.config().seed, context), finish)
}

fn read_prompt(argument: &str) -> Result<String> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(STDIN_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::Input(format!("cannot read stdin: {error}")))?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        return Err(Error::Input(format!("the prompt has more than {STDIN_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::Input(format!("the prompt is not UTF-8: the byte at {at} fits no character"))
    })
}

fn encode(args: &GenerateArgs, tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<TokenId>> {
    if prompt.is_empty() {
        return Err(Error::Input("the prompt is empty: give some text to continue".into()));
    }
    if !args.chat {
        return tokenizer.encode_prompt(prompt);
    }
    let Some(template) = ChatTemplate::open(&args.model.model)? else {
        return Err(Error::Unsupported(format!(
            "{} has no chat template: leave --chat out",
            args.model.model.display()
        )));
    };
    let system = args.system.as_deref().map(|text| Message::new("system", text));
    let messages: Vec<Message> = system.into_iter().chain([Message::new("user", prompt)]).collect();
    let options = TemplateOptions {
        add_generation_prompt: true,
        enable_thinking: args.no_think.then_some(false),
        now_seconds: Some(clock::seconds_since_1970()),
        ..TemplateOptions::default()
    };
    tokenizer.encode(&template.render(&messages, &options)?)
}

/// An answer as it comes in, and when.
struct Answer<'a> {
    args: &'a GenerateArgs,
    tokenizer: &'a Tokenizer,
    text: String,
    tokens: Vec<TokenId>,
    logprobs: Vec<Value>,
    stats: Stats,
    is_broken_pipe: bool,
}

impl<'a> Answer<'a> {
    fn new(
        args: &'a GenerateArgs,
        tokenizer: &'a Tokenizer,
        (load, n_prompt_tokens): (Duration, usize),
    ) -> Self {
        Self {
            args,
            tokenizer,
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            stats: Stats::start(load, n_prompt_tokens),
            is_broken_pipe: false,
        }
    }

    fn hear(&mut self, event: Event<'_>, interrupt: &Interrupt) -> ControlFlow<()> {
        match event {
            Event::Reading(_) => {}
            Event::PromptRead => self.stats.prompt_read(),
            Event::Token { token, logprob, top } => {
                self.stats.token();
                self.tokens.push(token);
                if let Some(logprob) = logprob {
                    self.logprobs.push(self.logprob_json((token, logprob), top));
                }
            }
            Event::Text(text) => self.write(text),
        }
        if self.is_broken_pipe { ControlFlow::Break(()) } else { interrupt.poll() }
    }

    fn write(&mut self, text: &str) {
        self.text.push_str(text);
        if self.args.json {
            return;
        }
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        // Whoever reads has enough.
        self.is_broken_pipe |= written.is_err();
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

    fn end(self, engine: &Engine, (seed, context): (u64, usize), finish: Finish) -> Result<()> {
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
        if !self.is_broken_pipe && !self.text.ends_with('\n') {
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
