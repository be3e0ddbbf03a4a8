//! Tool calls in the form that the client expects: its names, and its arguments.
//!
//! For the model every tool is a function with a single name. A client of `OpenAI`'s dialects may
//! have offered a custom tool, which takes a single text, or a member of a namespace.
//! **Invariant:** how the arguments are split into chunks does not affect the concatenated output.

use std::collections::BTreeMap;

use moeflux_chat::{Tool, ToolKind};
use serde_json::Value as Json;

/// Tools that are not plain functions, by the names that the model knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToolKinds {
    kinds: BTreeMap<String, ToolKind>,
}

/// The client's name for a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientTool {
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    pub(crate) is_custom: bool,
}

impl ToolKinds {
    /// Collects the kinds of the offered tools.
    pub(crate) fn of(tools: &[Tool]) -> Self {
        let others = tools.iter().filter(|tool| tool.kind != ToolKind::Function);
        Self { kinds: others.map(|tool| (tool.name.clone(), tool.kind.clone())).collect() }
    }

    /// Returns the client's name for the tool with this name in the model.
    pub(crate) fn client_tool(&self, name: &str) -> ClientTool {
        let (name, namespace, is_custom) = match self.kinds.get(name) {
            Some(ToolKind::Member { namespace, name, is_custom }) => {
                (name.as_str(), Some(namespace.clone()), *is_custom)
            }
            Some(ToolKind::Custom) => (name, None, true),
            _ => (name, None, false),
        };
        ClientTool { name: name.to_owned(), namespace, is_custom }
    }
}

/// Converts the arguments of one call for the client.
#[derive(Clone, Debug)]
pub(crate) enum Arguments {
    /// JSON; true once there are arguments.
    Json(bool),
    /// The text inside the JSON, for a custom tool.
    Input(InputDecoder),
}

impl Arguments {
    /// Creates the converter for a call of this tool.
    pub(crate) fn new(client_tool: &ClientTool) -> Self {
        if client_tool.is_custom { Self::Input(InputDecoder::default()) } else { Self::Json(false) }
    }

    /// Takes more arguments and returns the output for the client, which may be empty.
    pub(crate) fn push(&mut self, text: &str) -> String {
        match self {
            Self::Json(is_begun) => {
                *is_begun |= !text.is_empty();
                text.to_owned()
            }
            Self::Input(input) => input.push(text),
        }
    }

    /// Returns the rest when the arguments are complete; absent arguments become an empty object.
    pub(crate) fn end(&mut self) -> String {
        match self {
            Self::Json(true) => String::new(),
            Self::Json(false) => "{}".to_owned(),
            Self::Input(input) => input.end(),
        }
    }
}

/// Extracts the text from `{"input": "text"}` while it arrives.
#[derive(Clone, Debug, Default)]
pub(crate) struct InputDecoder {
    stage: InputStage,
    /// Input that is not decoded yet; for arguments of another form, all of it.
    pending: String,
}

/// Where an [`InputDecoder`] is in the arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InputStage {
    #[default]
    BeforeText,
    InText,
    AfterText,
    /// The arguments have another form and are parsed when complete.
    OtherForm,
}

/// The tokens before the text; whitespace may separate any two of them.
const OPENING: [&str; 4] = ["{", "\"input\"", ":", "\""];

impl InputDecoder {
    fn push(&mut self, text: &str) -> String {
        self.pending.push_str(text);
        if self.stage == InputStage::BeforeText {
            self.open();
        }
        match self.stage {
            InputStage::InText => self.text(),
            InputStage::AfterText => {
                self.pending.clear();
                String::new()
            }
            InputStage::BeforeText | InputStage::OtherForm => String::new(),
        }
    }

    /// Returns the rest. If arguments of another form have an `input`, it is the text; otherwise
    /// they are returned unchanged.
    fn end(&mut self) -> String {
        let pending = std::mem::take(&mut self.pending);
        if matches!(self.stage, InputStage::InText | InputStage::AfterText) {
            return String::new();
        }
        match serde_json::from_str::<Json>(&pending) {
            Ok(Json::Object(map)) if map.is_empty() => String::new(),
            Ok(json) => match json.get("input") {
                Some(Json::String(text)) => text.clone(),
                _ => pending,
            },
            Err(_) => pending,
        }
    }

    fn open(&mut self) {
        let mut rest = self.pending.as_str();
        for part in OPENING {
            rest = rest.trim_start();
            match rest.strip_prefix(part) {
                Some(more) => rest = more,
                None if part.starts_with(rest) => return,
                None => {
                    self.stage = InputStage::OtherForm;
                    return;
                }
            }
        }
        self.pending = rest.to_owned();
        self.stage = InputStage::InText;
    }

    /// Decodes up to the end of the text, or up to an incomplete escape.
    fn text(&mut self) -> String {
        let mut text = String::new();
        let mut n_taken = 0;
        while let Some(character) = self.pending[n_taken..].chars().next() {
            match character {
                '"' => {
                    self.stage = InputStage::AfterText;
                    n_taken = self.pending.len();
                }
                '\\' => {
                    let Some((decoded, n_bytes)) = escape(&self.pending[n_taken..]) else { break };
                    text.push(decoded);
                    n_taken += n_bytes;
                }
                plain => {
                    text.push(plain);
                    n_taken += plain.len_utf8();
                }
            }
        }
        self.pending.drain(..n_taken);
        text
    }
}

/// Returns the character of the escape at the start of the text, and its length; `None` if more
/// input is needed. An unknown escape gives its second character; a malformed `\u` escape and half
/// of a surrogate pair give U+FFFD.
fn escape(text: &str) -> Option<(char, usize)> {
    let character = text.chars().nth(1)?;
    let plain = match character {
        'u' => return unicode_escape(text),
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        other => other,
    };
    Some((plain, 1 + character.len_utf8()))
}

fn unicode_escape(text: &str) -> Option<(char, usize)> {
    let one = |code| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    let Some(first) = code(text, 0)? else { return Some((char::REPLACEMENT_CHARACTER, 2)) };
    if !(0xD800..0xDC00).contains(&first) {
        return Some((one(first), 6));
    }
    let next = &text[6..];
    if "\\u".starts_with(next) {
        return None;
    }
    let second = if next.starts_with("\\u") { code(text, 6)? } else { None };
    match second {
        Some(second) if (0xDC00..0xE000).contains(&second) => {
            Some((one(0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00)), 12))
        }
        _ => Some((char::REPLACEMENT_CHARACTER, 6)),
    }
}

/// Returns the number after `\u` at this offset: `None` if more input is needed, and `Some(None)`
/// if there are characters other than hexadecimal digits.
fn code(text: &str, at: usize) -> Option<Option<u32>> {
    let digits = text.as_bytes().get(at + 2..at + 6)?;
    let digits = std::str::from_utf8(digits).ok();
    Some(digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn joined(pieces: &[&str]) -> String {
        let client_tool = ClientTool { name: "f".into(), namespace: None, is_custom: true };
        let mut arguments = Arguments::new(&client_tool);
        let mut text: String = pieces.iter().map(|piece| arguments.push(piece)).collect();
        text.push_str(&arguments.end());
        text
    }

    /// Checks the arguments whole, cut at each place, and character by character.
    #[track_caller]
    fn check(arguments: &str, expected: &str) {
        assert_eq!(joined(&[arguments]), expected, "{arguments}");
        for (cut, _) in arguments.char_indices() {
            let (start, end) = arguments.split_at(cut);
            assert_eq!(joined(&[start, end]), expected, "{arguments} cut at {cut}");
        }
        let characters: Vec<String> = arguments.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(joined(&characters), expected, "{arguments} by characters");
    }

    #[test]
    fn the_text_of_a_custom_tool_is_taken_out_of_its_arguments() {
        check(r#"{"input":"ls -l"}"#, "ls -l");
        check("\n{ \"input\" :\t\"a\" }\n", "a");
        check(r#"{"input": ""}"#, "");
        let text = "a\"b\\c/d\u{8}\u{c}\n\r\t\u{0}\u{e9}\u{1f600}{\"input\": \"x\"}";
        check(&json!({"input": text}).to_string(), text);
        check(r#"{"input": "\u00e9\u0041\ud83d\ude00\/"}"#, "\u{e9}A\u{1f600}/");
        check(r#"{"input": "a", "more": "b"}"#, "a");
        check(r#"{"more": {"x": 1}, "input": "a"}"#, "a");
    }

    #[test]
    fn other_arguments_are_unchanged() {
        for other in [r#"{"patch": "x"}"#, r#"{"input": 5}"#, r#"{"input": ["a"]}"#, "words", "5"] {
            check(other, other);
        }
        check("{}", "");
        check("", "");
    }

    #[test]
    fn half_pairs_and_broken_escapes_do_not_stop_it() {
        check(r#"{"input": "\ud83dx"}"#, "\u{fffd}x");
        check(r#"{"input": "\ud83d\u0041"}"#, "\u{fffd}A");
        check(r#"{"input": "\ude00"}"#, "\u{fffd}");
        check("{\"input\": \"\\u\u{e9}\u{e9}\u{e9}\"}", "\u{fffd}\u{e9}\u{e9}\u{e9}");
        check("{\"input\": \"\\\u{e9}\"}", "\u{e9}");
        check(r#"{"input": "cut \ud8"#, "cut ");
        check(r#"{"input": "cut \"#, "cut ");
    }

    #[test]
    fn no_arguments_are_an_empty_object() {
        let client_tool = ToolKinds::default().client_tool("f");
        assert_eq!(Arguments::new(&client_tool).end(), "{}");
        let mut arguments = Arguments::new(&client_tool);
        assert_eq!(arguments.push("{\"a\":"), "{\"a\":");
        assert_eq!(arguments.push(""), "");
        assert_eq!(arguments.end(), "");
    }

    #[test]
    fn tools_have_the_names_that_the_client_gave_them() {
        let tool = Tool::custom("run".into(), None);
        let function = Tool::function("f".into(), None, None);
        let kinds = ToolKinds::of(&[function.clone(), tool.clone(), tool.member_of("shell")]);
        let client_tool = |name: &str, namespace: Option<&str>, is_custom| ClientTool {
            name: name.into(),
            namespace: namespace.map(str::to_owned),
            is_custom,
        };
        assert_eq!(kinds.client_tool("f"), client_tool("f", None, false));
        assert_eq!(kinds.client_tool("run"), client_tool("run", None, true));
        assert_eq!(kinds.client_tool("shell__run"), client_tool("run", Some("shell"), true));
        assert_eq!(kinds.client_tool("unknown"), client_tool("unknown", None, false));
        assert_eq!(ToolKinds::of(&[function]), ToolKinds::default());
    }
}
