//! A conversation in one form, whatever format it came in.
//!
//! **Invariant:** content is text, and the arguments of a call are a JSON object, so a template
//! never meets a list of parts, or a string where it expects a table. This module is independent of
//! templates.

use serde_json::{Map, Value as Json};

/// The turns so far, the tools on offer, and the ending of the prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// The turns, in order.
    pub turns: Vec<Turn>,
    /// Tools that the model may call.
    pub tools: Vec<Tool>,
    /// How the prompt ends after the last turn.
    pub ending: Ending,
}

impl Conversation {
    /// Creates a conversation that begins with a question.
    #[must_use]
    pub fn new(question: impl Into<String>) -> Self {
        Self { turns: vec![Turn::User(question.into())], ..Self::default() }
    }

    /// Returns a number from which on no call has an id that is `prefix` and the number.
    pub(crate) fn first_free_number(&self, prefix: &str) -> usize {
        let calls = self.turns.iter().filter_map(|turn| match turn {
            Turn::Assistant(answer) => Some(&answer.calls),
            _ => None,
        });
        let number = |call: &Call| call.id.strip_prefix(prefix)?.parse::<usize>().ok();
        calls.flatten().filter_map(number).max().map_or(0, |last| last.saturating_add(1))
    }
}

/// The end of a rendered conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// Ends with the start of the assistant's next turn.
    #[default]
    Answer,
    /// Ends inside the last turn, which is the assistant's, right after its last text; the answer
    /// continues there.
    Continue,
    /// Ends after the last turn.
    Closed,
}

/// One turn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Turn {
    /// Instructions, at the start or later. Some clients call this role `developer`.
    System(String),
    /// Text from the user.
    User(String),
    /// An answer of the assistant.
    Assistant(Assistant),
    /// The result of a tool call.
    Tool(ToolResult),
}

/// The assistant's thoughts, text and calls, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assistant {
    /// The thoughts before the answer, if known.
    pub thoughts: Option<String>,
    /// The text of the answer.
    pub text: String,
    /// The tool calls of the answer.
    pub calls: Vec<Call>,
}

/// A tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// An id that is unique in the conversation.
    pub id: String,
    /// The tool's [`Tool::name`].
    pub name: String,
    /// The arguments by parameter name.
    pub arguments: Map<String, Json>,
}

/// The result of a tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    /// The [`Call::id`] of the call.
    pub call_id: String,
    /// The tool's name; `None` if only the call states it.
    pub name: Option<String>,
    /// The text that the tool returned.
    pub text: String,
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The name by which the model calls it.
    pub name: String,
    /// A description for the model.
    pub description: Option<String>,
    /// A JSON schema of the arguments.
    pub parameters: Json,
    /// The form in which the client expects calls.
    pub kind: ToolKind,
}

/// The form in which a client expects calls of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolKind {
    /// By name, with JSON arguments.
    #[default]
    Function,
    /// With a single text. The model sees a function with the parameter `input`.
    Custom,
    /// As a member of a namespace. The model sees it as `{namespace}__{name}`.
    Member {
        /// The namespace.
        namespace: String,
        /// The name within the namespace.
        name: String,
        /// Whether it takes a single text, as [`ToolKind::Custom`].
        is_custom: bool,
    },
}

/// The parameter of a custom tool.
pub(crate) const CUSTOM_PARAMETER: &str = "input";

/// The key for arguments that are not a JSON object.
pub(crate) const UNPARSED_ARGUMENTS: &str = "arguments";

impl Tool {
    /// Creates a function; without `parameters` it takes none.
    #[must_use]
    pub fn function(name: String, description: Option<String>, parameters: Option<Json>) -> Self {
        let none = || serde_json::json!({"type": "object", "properties": {}});
        let parameters = parameters.filter(|it| !it.is_null()).unwrap_or_else(none);
        Self { name, description, parameters, kind: ToolKind::Function }
    }

    /// Creates a tool that takes a single text.
    #[must_use]
    pub fn custom(name: String, description: Option<String>) -> Self {
        let parameters = serde_json::json!({
            "type": "object",
            "properties": {CUSTOM_PARAMETER: {"type": "string"}},
            "required": [CUSTOM_PARAMETER],
        });
        Self { name, description, parameters, kind: ToolKind::Custom }
    }

    /// Moves the tool into a namespace.
    #[must_use]
    pub fn member_of(self, namespace: &str) -> Self {
        let is_custom = self.kind == ToolKind::Custom;
        let full_name = member_name(namespace, &self.name);
        let kind = ToolKind::Member { namespace: namespace.to_owned(), name: self.name, is_custom };
        Self { name: full_name, kind, ..self }
    }
}

/// Returns the name by which the model knows a tool in a namespace.
#[must_use]
fn member_name(namespace: &str, name: &str) -> String {
    format!("{}__{name}", namespace.trim_end_matches('_'))
}

impl Call {
    /// Creates a call from arguments in text form, as histories carry them. Text that is not a JSON
    /// object was already malformed when the model wrote it, and is kept as the value of one
    /// argument.
    #[must_use]
    pub fn from_text(id: String, name: String, arguments: &str) -> Self {
        let arguments = match serde_json::from_str(arguments) {
            Ok(Json::Object(arguments)) => arguments,
            _ if arguments.trim().is_empty() => Map::new(),
            _ => one_argument(UNPARSED_ARGUMENTS, arguments),
        };
        Self { id, name, arguments }
    }

    /// Creates a call of a custom tool.
    #[must_use]
    pub fn custom(id: String, name: String, input: &str) -> Self {
        Self { id, name, arguments: one_argument(CUSTOM_PARAMETER, input) }
    }

    /// Changes the call to one of a tool in a namespace.
    #[must_use]
    pub fn member_of(self, namespace: &str) -> Self {
        Self { name: member_name(namespace, &self.name), ..self }
    }
}

fn one_argument(name: &str, value: &str) -> Map<String, Json> {
    [(name.to_owned(), Json::from(value))].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn arguments_are_always_an_object() {
        let check = |text: &str, expected: Json| {
            let call = Call::from_text("c".into(), "f".into(), text);
            assert_eq!(Json::Object(call.arguments), expected, "{text}");
        };
        check(r#"{"b": 1, "a": [2]}"#, json!({"b": 1, "a": [2]}));
        check("", json!({}));
        check(" \n", json!({}));
        for malformed in [r#"{"b": 1"#, "[1]", "3", "null", "words", "{} {}"] {
            check(malformed, json!({"arguments": malformed}));
        }
        let deep = "[".repeat(100_000);
        check(&deep, json!({"arguments": deep}));
        let call = Call::custom("c".into(), "f".into(), "x = 1");
        assert_eq!(Json::Object(call.arguments), json!({"input": "x = 1"}));
    }

    #[test]
    fn numbers_of_calls_count_on() {
        let answer = |ids: &[&str]| {
            let call = |id: &&str| Call::from_text((*id).to_owned(), "f".into(), "{}");
            Turn::Assistant(Assistant {
                calls: ids.iter().map(call).collect(),
                ..Assistant::default()
            })
        };
        let mut conversation = Conversation::new("call_9");
        assert_eq!(conversation.first_free_number("call_"), 0);
        conversation.turns.push(answer(&["call_0", "call_3"]));
        conversation.turns.push(answer(&["call_2", "call_x", "functions.f:7"]));
        assert_eq!(conversation.first_free_number("call_"), 4);
    }

    #[test]
    fn members_of_groups_have_names_of_their_own() {
        let tool = Tool::custom("run".into(), None).member_of("mcp__shell__");
        assert_eq!(tool.name, "mcp__shell__run");
        let kind = ToolKind::Member {
            namespace: "mcp__shell__".into(),
            name: "run".into(),
            is_custom: true,
        };
        assert_eq!(tool.kind, kind);
        let tool = Tool::function("close".into(), None, Some(Json::Null)).member_of("agents");
        assert_eq!(tool.name, "agents__close");
        assert_eq!(tool.parameters, json!({"type": "object", "properties": {}}));
        let call = Call::from_text("c".into(), "close".into(), "{}").member_of("agents");
        assert_eq!(call.name, tool.name);
    }
}
