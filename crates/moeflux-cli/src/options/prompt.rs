//! The input of `moeflux generate`: a text to continue, or a conversation to answer, and the rules
//! for the answer.
//!
//! **Invariant:** messages and tools are parsed as the server parses those of Chat Completions.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use moeflux::{Error, Result, TextLimit};
use moeflux_chat::{
    AnswerForm, AnswerRules, AskError, Assistant, Chat, ChatOptions, Conversation, Ending,
    PreparedPrompt, RuleError, RulePart, ToolChoice, Turn,
};
use moeflux_io::OneLine;
use moeflux_wire::{Prompt, Request, chat};
use serde_json::{Map, Value, json};

use crate::failure::{CommandFailure, CommandResult};
use crate::output::print;
use crate::system::clock;
use crate::system::in_file::read_file;

/// Upper bound on a prompt from stdin or a file, in bytes: far beyond any context.
const PROMPT_BYTES_MAX: u64 = 64 << 20;

/// Options for the prompt.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("asked").required(true).multiple(true))]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct PromptArgs {
    /// Text to continue; `-` reads it from stdin
    #[arg(group = "asked")]
    prompt: Option<String>,
    /// File with the text to continue
    #[arg(long, value_name = "FILE", conflicts_with = "prompt", group = "asked")]
    prompt_file: Option<PathBuf>,
    /// Format the prompt with the model's chat template, as a user message; an empty think block
    /// before the answer is not printed
    #[arg(long)]
    pub(crate) chat: bool,
    /// System message before the prompt
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,
    /// JSON file with earlier messages, as `messages` of the OpenAI API, or with an object that
    /// also has `tools`, `tool_choice` or `response_format`; options override these
    #[arg(long, value_name = "FILE", requires = "chat", group = "asked")]
    messages: Option<PathBuf>,
    /// Beginning of the answer, which the model continues
    #[arg(long, value_name = "TEXT", requires = "chat")]
    prefill: Option<String>,
    /// Ask the template for an answer with reasoning. Without this option, there is none before an
    /// answer to --schema or a forced call
    #[arg(long, requires = "chat", conflicts_with = "no_think")]
    think: bool,
    /// Ask the template for an answer without reasoning
    #[arg(long, requires = "chat")]
    no_think: bool,
    /// JSON file with the tools that the answer may call, as `tools` of the OpenAI API; a call is
    /// printed as one line of JSON
    #[arg(long, value_name = "FILE", requires = "chat")]
    tools: Option<PathBuf>,
    /// Whether the answer calls tools: auto, none, required, or the name of the tool that it must
    /// call [default: auto]
    #[arg(long, value_name = "CHOICE", requires = "chat")]
    tool_choice: Option<String>,
    /// JSON file with the JSON schema that the answer follows, after its thoughts
    // A grammar constrains the generated text, not a given beginning.
    #[arg(long, value_name = "FILE", requires = "chat", conflicts_with = "prefill")]
    schema: Option<PathBuf>,
}

/// A conversation, and the rules for its answer.
#[derive(Debug)]
pub(crate) struct ConversationRequest {
    conversation: Conversation,
    rules: AnswerRules,
    /// The field of `--messages` that gave the form of the answer, if `--schema` did not.
    form_field: Option<String>,
}

impl PromptArgs {
    /// Reads the files named by the arguments.
    pub(crate) fn chat(&self) -> CommandResult<ConversationRequest> {
        let schema = self.schema.as_deref().map(read_schema).transpose()?;
        let Request { prompt, rules, form_field, ignored, .. } = self.request()?;
        let Prompt::Chat(conversation, _) = prompt else {
            unreachable!("messages are a conversation")
        };
        if let Some(path) = &self.tools {
            let without_effect = ignored.names().filter(|it| it.starts_with("tools["));
            let without_effect = without_effect.collect::<Vec<_>>().join(", ");
            if !without_effect.is_empty() {
                let names = OneLine::message(&without_effect);
                print::stderr_line(&format!("note: {}: no effect here: {names}", path.display()));
            }
        }
        let Conversation { mut turns, tools, .. } = *conversation;
        turns.splice(0..0, self.system.iter().cloned().map(Turn::System));
        let mut ending = Ending::Answer;
        if let Some(text) = self.prefill.clone() {
            turns.push(Turn::Assistant(Assistant { text, ..Assistant::default() }));
            ending = Ending::Continue;
        }
        let mut rules = rules;
        if let Some(schema) = schema {
            if matches!(rules.tool_choice, ToolChoice::Required | ToolChoice::Named(_)) {
                let problem = "--schema: a call is forced (`tool_choice`), which cannot be \
                               combined with a schema: leave one of them out";
                return Err(CommandFailure::Usage(problem.to_owned()));
            }
            rules.form = AnswerForm::JsonSchema(schema);
        }
        // Reasoning is controlled by options, not by the file.
        rules.n_thought_tokens_max = None;
        let conversation = Conversation { turns, tools, ending };
        Ok(ConversationRequest { conversation, rules, form_field })
    }

    /// Returns everything but the beginning and the end of the conversation, as a client would send
    /// it to a server.
    fn request(&self) -> CommandResult<Request> {
        let mut body = match &self.messages {
            Some(path) => read_messages(path)?,
            None => object("messages", json!([])),
        };
        if let Some(Value::Array(messages)) = body.get_mut("messages") {
            let message = |text| json!({"role": "user", "content": text});
            messages.extend(self.text()?.map(message));
        }
        if let Some(path) = &self.tools {
            body.insert("tools".to_owned(), read_tools(path)?);
        }
        if let Some(choice) = &self.tool_choice {
            let choice = match choice.as_str() {
                "auto" | "none" | "required" => json!(choice),
                name => json!({"type": "function", "name": name}),
            };
            body.insert("tool_choice".to_owned(), choice);
        }
        if self.schema.is_some() {
            body.remove("response_format");
        }
        let (request, _) =
            chat::parse_json(Value::Object(body)).map_err(|failure| self.refused(&failure))?;
        Ok(request)
    }

    /// Returns the error for a refused field, with its source.
    fn refused(&self, failure: &moeflux_wire::Failure) -> CommandFailure {
        let message = failure.message.as_str();
        let field = failure.field.as_deref().unwrap_or_default();
        let name = field.split(['.', '[']).next().unwrap_or_default();
        match (name, &self.tools, &self.tool_choice, &self.messages) {
            ("tools", Some(path), ..) => Error::malformed(path, message).into(),
            ("tool_choice", _, Some(_), _) => {
                let problem = message.strip_prefix(&format!("`{field}`: ")).unwrap_or(message);
                CommandFailure::Usage(format!("--tool-choice: {problem}"))
            }
            (.., Some(path)) => Error::malformed(path, message).into(),
            (.., None) => Error::Input(message.to_owned()).into(),
        }
    }

    /// Returns the prompt; `None` if there are only earlier messages.
    pub(crate) fn text(&self) -> Result<Option<String>> {
        let prompt = match (&self.prompt, &self.prompt_file) {
            (None, None) => return Ok(None),
            (_, Some(path)) => read_prompt(path)?,
            (Some(argument), _) if argument == "-" => read_stdin()?,
            (Some(argument), _) => argument.clone(),
        };
        if prompt.is_empty() {
            return Err(Error::Input("the prompt is empty: give a text to continue".into()));
        }
        Ok(Some(prompt))
    }

    /// Returns the prompt of a conversation, and the requirements of its answer.
    pub(crate) fn prepare(
        &self,
        chat: &Chat,
        request: &ConversationRequest,
        limit: &TextLimit,
    ) -> Result<PreparedPrompt> {
        if !chat.has_template() {
            let problem = "this model has no chat template: omit --chat";
            return Err(Error::Unsupported(problem.to_owned()));
        }
        if !chat.reads_calls() && !request.rules.callable(&request.conversation.tools).is_empty() {
            print::stderr_line(
                "note: tool calls stay text: the chat template has no known call format",
            );
        }
        let options = ChatOptions {
            thinking: (self.think || self.no_think).then_some(self.think),
            now_seconds: Some(clock::seconds_since_1970()),
            limit: limit.clone(),
            ..ChatOptions::default()
        };
        chat.ask(&request.conversation, &request.rules, &options).map_err(|error| match error {
            AskError::Prompt(error) => error,
            AskError::Rules(error) => self.unenforceable(error, request),
            other => Error::Unsupported(other.to_string()),
        })
    }

    /// Returns the error for a rule that cannot be enforced, with its source.
    fn unenforceable(&self, error: RuleError, request: &ConversationRequest) -> Error {
        let RuleError { part, problem, .. } = error;
        match (part, &self.schema, &self.messages, &request.form_field) {
            (RulePart::Form, Some(path), ..) => Error::malformed(path, problem),
            (RulePart::Form, None, Some(path), Some(field)) => {
                Error::malformed(path, format!("`{field}`: {problem}"))
            }
            _ => Error::Unsupported(problem),
        }
    }
}

/// Reads messages as clients send them to servers, with the fields next to them.
pub(crate) fn read_messages(path: &Path) -> Result<Map<String, Value>> {
    match read_json(path)? {
        Value::Object(body) => Ok(body),
        messages @ Value::Array(_) => Ok(object("messages", messages)),
        _ => {
            let problem = "is neither a list of messages nor an object with `messages`";
            Err(Error::malformed(path, problem))
        }
    }
}

/// Reads a list of tools, alone or in the `tools` field of an object.
pub(crate) fn read_tools(path: &Path) -> Result<Value> {
    let found = match read_json(path)? {
        Value::Object(mut body) => body.remove("tools").unwrap_or_default(),
        other => other,
    };
    match found {
        Value::Array(tools) => Ok(tools.into_iter().map(of_chat_completions).collect()),
        _ => {
            let problem = "is neither a list of tools nor an object with a list in `tools`";
            Err(Error::malformed(path, problem))
        }
    }
}

/// Converts a tool to the shape of Chat Completions, where the definition is in an object named
/// after its type. The input may be the definition alone, or have its fields next to the type, as
/// in Responses.
fn of_chat_completions(tool: Value) -> Value {
    let Value::Object(mut tool) = tool else { return tool };
    let kind = match tool.get("type").map(Value::as_str) {
        None | Some(Some("function")) => "function",
        Some(Some("custom")) => "custom",
        Some(_) => return Value::Object(tool),
    };
    if tool.contains_key(kind) || !tool.contains_key("name") {
        tool.insert("type".to_owned(), kind.into());
        return Value::Object(tool);
    }
    tool.remove("type");
    json!({"type": kind, kind: tool})
}

/// Reads a schema and checks its outer form; other errors are found when its grammar is built.
fn read_schema(path: &Path) -> Result<Value> {
    let schema = read_json(path)?;
    if !schema.is_object() {
        return Err(Error::malformed(path, "is not a JSON schema: expected an object"));
    }
    // `schema` is not a keyword: it would leave the answer unconstrained.
    if schema.get("schema").is_some_and(Value::is_object) {
        let problem = "wraps the schema in `schema`: the file must contain only the schema";
        return Err(Error::malformed(path, problem));
    }
    Ok(schema)
}

fn read_json(path: &Path) -> Result<Value> {
    let bytes = read_file(path, PROMPT_BYTES_MAX)?;
    serde_json::from_slice(&bytes)
        .map_err(|error| Error::malformed(path, format!("is not JSON: {error}")))
}

fn object(key: &str, value: Value) -> Map<String, Value> {
    [(key.to_owned(), value)].into_iter().collect()
}

/// Reads a text from a file.
pub(crate) fn read_prompt(path: &Path) -> Result<String> {
    String::from_utf8(read_file(path, PROMPT_BYTES_MAX)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::malformed(path, format!("is not UTF-8 at byte {at}"))
    })
}

/// Reads a text from stdin.
pub(crate) fn read_stdin() -> Result<String> {
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
