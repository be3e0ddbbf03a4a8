//! What `moeflux generate` is asked: a text to continue, or a conversation to answer.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use moeflux::provider::format::read_file;
use moeflux::{Error, ModelText, Result, TokenId};
use moeflux_chat::{AnswerStart, Assistant, ChatFormat, ChatOptions, Conversation, Ending, Turn};
use moeflux_server::wire::{Prompt, tokens::parse_template};
use serde_json::{Value, json};

use crate::clock;

/// Bytes of a prompt from stdin or a file: far beyond any context.
const PROMPT_BYTES_MAX: u64 = 64 << 20;

/// The prompt, and how it is told.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Asked {
    /// Text to continue; `-` reads it from stdin
    #[arg(required_unless_present = "messages")]
    prompt: Option<String>,
    /// Format the prompt with the model's chat template, as a message of the user; an empty think
    /// block before the answer is not printed
    #[arg(long)]
    pub(crate) chat: bool,
    /// System message before the prompt
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// JSON file with earlier messages, as `messages` of the OpenAI API, or with an object that
    /// also has `tools`
    #[arg(long, value_name = "FILE", requires = "chat")]
    messages: Option<PathBuf>,
    /// Beginning of the answer, which the model continues
    #[arg(long, value_name = "TEXT", requires = "chat")]
    prefill: Option<String>,
    /// Request an answer with reasoning from the template
    #[arg(long, requires = "chat", conflicts_with = "no_think")]
    think: bool,
    /// Request an answer without reasoning from the template
    #[arg(long, requires = "chat")]
    no_think: bool,
}

/// What the model reads, and what its answer begins with.
pub(crate) struct Encoded {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) start: AnswerStart,
}

impl Asked {
    /// Reads what is not in the arguments.
    pub(crate) fn conversation(&self) -> Result<Conversation> {
        let mut turns: Vec<Turn> = self.system.iter().cloned().map(Turn::System).collect();
        let mut tools = Vec::new();
        if let Some(path) = &self.messages {
            let earlier = read_messages(path)?;
            turns.extend(earlier.turns);
            tools = earlier.tools;
        }
        turns.extend(self.text()?.map(Turn::User));
        let mut ending = Ending::Answer;
        if let Some(text) = self.prefill.clone() {
            turns.push(Turn::Assistant(Assistant { text, ..Assistant::default() }));
            ending = Ending::Continue;
        }
        Ok(Conversation { turns, tools, ending })
    }

    /// The prompt; `None` where earlier messages are all.
    pub(crate) fn text(&self) -> Result<Option<String>> {
        let Some(argument) = &self.prompt else { return Ok(None) };
        let prompt = if argument == "-" { read_stdin()? } else { argument.clone() };
        if prompt.is_empty() {
            return Err(Error::Input("the prompt is empty: give a text to continue".into()));
        }
        Ok(Some(prompt))
    }

    /// The tokens of a conversation.
    pub(crate) fn encode(&self, text: &ModelText, conversation: &Conversation) -> Result<Encoded> {
        let Some(format) = ChatFormat::open(text)? else {
            let problem = "this model has no chat template: leave --chat out";
            return Err(Error::Unsupported(problem.to_owned()));
        };
        let options = ChatOptions {
            thinking: (self.think || self.no_think).then_some(self.think),
            now_seconds: Some(clock::seconds_since_1970()),
            ..ChatOptions::default()
        };
        let prompt = format.prompt(conversation, &options)?;
        Ok(Encoded { tokens: prompt.tokens(text.tokenizer())?, start: prompt.start })
    }
}

/// Messages as clients of servers send them.
fn read_messages(path: &Path) -> Result<Conversation> {
    let bytes = read_file(path, PROMPT_BYTES_MAX)?;
    let malformed = |problem: String| Error::malformed(path, problem);
    let parsed: Value = serde_json::from_slice(&bytes)
        .map_err(|error| malformed(format!("is not JSON: {error}")))?;
    let body = if parsed.is_array() { json!({"messages": parsed}) } else { parsed };
    match parse_template(body.to_string().as_bytes()) {
        Ok(Prompt::Chat(conversation, _)) => Ok(*conversation),
        Ok(Prompt::Texts(_)) => unreachable!("messages are a conversation"),
        Err(failure) => Err(malformed(failure.message)),
    }
}

fn read_stdin() -> Result<String> {
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(PROMPT_BYTES_MAX + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::Input(format!("cannot read stdin: {error}")))?;
    if bytes.len() as u64 > PROMPT_BYTES_MAX {
        return Err(Error::Input(format!("the prompt has more than {PROMPT_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::Input(format!("the prompt is not UTF-8 at byte {at}"))
    })
}
