//! Conversations and tools in files, in the format of `generate --messages` and `--tools`.
//!
//! **Invariant:** a conversation that was written is read back unchanged; no file is overwritten
//! except the conversation's own.

use std::path::{Path, PathBuf};

use moeflux::{Error, Result};
use moeflux_chat::{Assistant, Call, Conversation, Tool, ToolKind, Turn};
use moeflux_wire::{Prompt, chat};
use serde_json::{Map, Value, json};

use crate::commands::chat::transcript::Transcript;
use crate::options::prompt;
use crate::system::out_file::OutFile;

/// Parses a typed path as shells do: in quotes, with backslashes before blanks (except where
/// backslashes separate folders), and with `~` for the user's folder.
pub(crate) fn path(typed: &str) -> PathBuf {
    let quoted = |quote| typed.strip_prefix(quote).and_then(|it: &str| it.strip_suffix(quote));
    let typed = match quoted('"').or_else(|| quoted('\'')) {
        Some(inner) => inner.to_owned(),
        None if cfg!(windows) => typed.to_owned(),
        None => unescaped(typed),
    };
    match typed.strip_prefix("~/").zip(std::env::home_dir()) {
        Some((rest, home)) => home.join(rest),
        None => PathBuf::from(typed),
    }
}

fn unescaped(typed: &str) -> String {
    let mut letters = typed.chars();
    let mut path = String::new();
    while let Some(letter) = letters.next() {
        let letter = if letter == '\\' { letters.next().unwrap_or(letter) } else { letter };
        path.push(letter);
    }
    path
}

/// Writes a conversation. `own` is the file that it was last written to or read from.
pub(crate) fn save(transcript: &Transcript, path: &Path, own: Option<&Path>) -> Result<()> {
    if own != Some(path) && path.is_file() {
        let problem = "exists and is not the file of this conversation: name another one";
        return Err(Error::malformed(path, problem));
    }
    let mut body = Map::new();
    body.insert("messages".to_owned(), transcript.turns().iter().filter_map(message).collect());
    if !transcript.tools().is_empty() {
        body.insert("tools".to_owned(), transcript.tools().iter().map(tool).collect());
    }
    let out = OutFile::new(path)?;
    let text = format!("{:#}\n", Value::Object(body));
    std::fs::write(out.path(), text).map_err(Error::io("write", out.path()))?;
    out.finish()
}

/// Reads a conversation.
pub(crate) fn load(path: &Path) -> Result<Conversation> {
    parse(prompt::read_messages(path)?, path)
}

/// Reads tools.
pub(crate) fn tools(path: &Path) -> Result<Vec<Tool>> {
    let mut body = Map::new();
    body.insert("tools".to_owned(), prompt::read_tools(path)?);
    // The parser requires a conversation with something to answer.
    body.insert("messages".to_owned(), json!([{"role": "user", "content": ""}]));
    Ok(parse(body, path)?.tools)
}

fn parse(body: Map<String, Value>, path: &Path) -> Result<Conversation> {
    let body = Value::Object(body).to_string();
    let parsed = chat::parse(body.as_bytes());
    let (request, _) = parsed.map_err(|failure| Error::malformed(path, failure.message))?;
    match request.prompt {
        Prompt::Chat(conversation, _) => Ok(*conversation),
        Prompt::Texts(_) => unreachable!("messages are a conversation"),
    }
}

fn message(turn: &Turn) -> Option<Value> {
    match turn {
        Turn::System(text) => Some(json!({"role": "system", "content": text})),
        Turn::User(text) => Some(json!({"role": "user", "content": text})),
        Turn::Assistant(answer) => Some(assistant(answer)),
        Turn::Tool(result) => {
            let mut message = json!({"role": "tool", "tool_call_id": result.call_id});
            if let Some(name) = &result.name {
                message["name"] = json!(name);
            }
            message["content"] = json!(result.text);
            Some(message)
        }
        _ => None,
    }
}

fn assistant(answer: &Assistant) -> Value {
    let mut message = json!({"role": "assistant"});
    if let Some(thoughts) = &answer.thoughts {
        message["reasoning_content"] = json!(thoughts);
    }
    message["content"] = json!(answer.text);
    if !answer.calls.is_empty() {
        message["tool_calls"] = answer.calls.iter().map(call).collect();
    }
    message
}

fn call(call: &Call) -> Value {
    let arguments = Value::Object(call.arguments.clone()).to_string();
    let function = json!({"name": call.name, "arguments": arguments});
    json!({"id": call.id, "type": "function", "function": function})
}

fn tool(tool: &Tool) -> Value {
    let mut inner = json!({"name": tool.name});
    if let Some(description) = &tool.description {
        inner["description"] = json!(description);
    }
    if tool.kind == ToolKind::Custom {
        return json!({"type": "custom", "custom": inner});
    }
    inner["parameters"] = tool.parameters.clone();
    json!({"type": "function", "function": inner})
}

#[cfg(test)]
mod tests {
    use moeflux_chat::ToolResult;
    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn saved_conversations_load_again() {
        let dir = TempDir::new();
        let file = dir.path().join("talk.json");
        let call = Call::from_text("c".into(), "f".into(), r#"{"b": [1, 2.5], "a": "\n"}"#);
        let answer = |thoughts: Option<&str>, text: &str, calls: &[Call]| {
            let thoughts = thoughts.map(str::to_owned);
            Turn::Assistant(Assistant { thoughts, text: text.into(), calls: calls.to_vec() })
        };
        let result = ToolResult { call_id: "c".into(), name: Some("f".into()), text: "7".into() };
        let turns = vec![
            Turn::System("S".into()),
            Turn::User("q\n\"\u{e9}".into()),
            answer(Some("T"), "", &[call]),
            Turn::Tool(result),
            answer(None, "x", &[]),
            answer(None, "", &[]),
        ];
        let function =
            Tool::function("f".into(), Some("F".into()), Some(json!({"type": "object"})));
        let custom = Tool::custom("g".into(), None);
        let mut transcript = Transcript::default();
        transcript.replace(Conversation {
            turns,
            tools: vec![function, custom],
            ..Default::default()
        });
        save(&transcript, &file, None).unwrap();
        let mut loaded = Transcript::default();
        loaded.replace(load(&file).unwrap());
        assert_eq!(loaded, transcript);
        assert_eq!(tools(&file).unwrap(), transcript.tools());
        let refused = save(&transcript, &file, Some(dir.path())).unwrap_err().to_string();
        assert!(refused.contains("name another one"), "{refused}");
        save(&transcript, &file, Some(&file)).unwrap();
    }

    #[test]
    fn paths_are_read_as_shells_read_them() {
        for (typed, expected) in [
            ("a/b.json", "a/b.json"),
            ("my talk.json", "my talk.json"),
            ("\"my talk.json\"", "my talk.json"),
            ("'my talk.json'", "my talk.json"),
            ("~", "~"),
        ] {
            assert_eq!(path(typed), PathBuf::from(expected), "{typed}");
        }
        assert_eq!(unescaped("my\\ talk\\\\x\\"), "my talk\\x\\");
        let home = path("~/talk.json");
        assert!(home.ends_with("talk.json") && !home.starts_with("~"), "{}", home.display());
    }

    #[test]
    fn invalid_conversations_are_refused_with_a_reason() {
        let dir = TempDir::new();
        let file = dir.path().join("bad.json");
        for (text, problem) in [
            ("", "is not JSON"),
            ("7", "is neither a list of messages"),
            ("[]", "is empty"),
            (r#"[{"role": "bard", "content": ""}]"#, "messages[0].role"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = load(&file).unwrap_err().to_string();
            assert!(error.contains("bad.json: ") && error.contains(problem), "{error}");
        }
        assert!(tools(&file).unwrap_err().to_string().contains("bad.json"));
    }
}
