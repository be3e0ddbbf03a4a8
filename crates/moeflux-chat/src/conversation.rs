//! A conversation in one form, whatever format it came in.
//!
//! **Invariant:** content is text, and the arguments of a call are a JSON object; so no template
//! meets a list of parts or a string where it expects a table. Knows no template.

use serde_json::{Map, Value as Json};

/// What was said, what may be called, and what comes next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// In order.
    pub turns: Vec<Turn>,
    /// What the model is offered.
    pub tools: Vec<Tool>,
    /// What stands behind the last turn.
    pub ending: Ending,
}

impl Conversation {
    /// A conversation that begins with a question.
    #[must_use]
    pub fn new(question: impl Into<String>) -> Self {
        Self { turns: vec![Turn::User(question.into())], ..Self::default() }
    }
}

/// Where a rendered conversation ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// With the start of the assistant's next turn.
    #[default]
    Answer,
    /// Inside the last turn, which is the assistant's, behind its last text: the answer goes on
    /// there.
    Continue,
    /// Behind the last turn.
    Closed,
}

/// One turn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Turn {
    /// Instructions, at the start or later. `developer` is another name of it.
    System(String),
    /// What the user said.
    User(String),
    /// What the assistant said.
    Assistant(Assistant),
    /// What a tool returned.
    Tool(ToolResult),
}

/// What the assistant thought, said and called, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assistant {
    /// What it thought before it answered, if that is known.
    pub thoughts: Option<String>,
    /// What it said.
    pub text: String,
    /// What it called.
    pub calls: Vec<Call>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Unique in the conversation.
    pub id: String,
    /// The tool's [`Tool::name`].
    pub name: String,
    /// By the names of the parameters.
    pub arguments: Map<String, Json>,
}

/// What a call returned.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolResult {
    /// The [`Call::id`].
    pub call_id: String,
    /// The tool's name; `None` if only the call knows it.
    pub name: Option<String>,
    /// What came back.
    pub text: String,
}

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// How the model calls it.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// A JSON schema of the arguments.
    pub parameters: Json,
    /// How the client that offered it expects to be called.
    pub kind: ToolKind,
}

/// How a client expects to hear of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolKind {
    /// By name, with arguments.
    #[default]
    Function,
    /// With one text. The model is offered a function with the parameter `input`.
    Custom,
    /// As one of a group. The model knows it as `{namespace}__{name}`.
    Member {
        /// The group.
        namespace: String,
        /// The name in the group.
        name: String,
        /// Whether it takes one text, as [`ToolKind::Custom`].
        is_custom: bool,
    },
}

/// The parameter of a custom tool.
pub(crate) const CUSTOM_PARAMETER: &str = "input";

/// The key of arguments that are no JSON object.
pub(crate) const UNPARSED_ARGUMENTS: &str = "arguments";

impl Tool {
    /// A function; without parameters it takes none.
    #[must_use]
    pub fn function(name: String, description: Option<String>, parameters: Option<Json>) -> Self {
        let none = || serde_json::json!({"type": "object", "properties": {}});
        let parameters = parameters.filter(|it| !it.is_null()).unwrap_or_else(none);
        Self { name, description, parameters, kind: ToolKind::Function }
    }

    /// A tool that takes one text.
    #[must_use]
    pub fn custom(name: String, description: Option<String>) -> Self {
        let parameters = serde_json::json!({
            "type": "object",
            "properties": {CUSTOM_PARAMETER: {"type": "string"}},
            "required": [CUSTOM_PARAMETER],
        });
        Self { name, description, parameters, kind: ToolKind::Custom }
    }

    /// The same tool as one of a group.
    #[must_use]
    pub fn member_of(self, namespace: &str) -> Self {
        let is_custom = self.kind == ToolKind::Custom;
        let full_name = member_name(namespace, &self.name);
        let kind = ToolKind::Member { namespace: namespace.to_owned(), name: self.name, is_custom };
        Self { name: full_name, kind, ..self }
    }
}

/// How the model knows a tool of a group.
#[must_use]
fn member_name(namespace: &str, name: &str) -> String {
    format!("{}__{name}", namespace.trim_end_matches('_'))
}

impl Call {
    /// A call as a history tells it: arguments as text. What is no JSON object was malformed when
    /// the model wrote it, and is kept as the text of one argument.
    #[must_use]
    pub fn from_text(id: String, name: String, arguments: &str) -> Self {
        let arguments = match serde_json::from_str(arguments) {
            Ok(Json::Object(arguments)) => arguments,
            _ if arguments.trim().is_empty() => Map::new(),
            _ => one_argument(UNPARSED_ARGUMENTS, arguments),
        };
        Self { id, name, arguments }
    }

    /// A call of a custom tool.
    #[must_use]
    pub fn custom(id: String, name: String, input: &str) -> Self {
        Self { id, name, arguments: one_argument(CUSTOM_PARAMETER, input) }
    }

    /// The same call of a tool of a group.
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
