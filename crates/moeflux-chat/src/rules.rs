//! What an answer is bound to, beside the conversation.
//!
//! **Invariant:** rules say what a client asked for; whether a model and a grammar can hold them is
//! found where the grammar is made. Knows no dialect.

use serde_json::Value as Json;

use crate::conversation::Tool;

/// What an answer may look like.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerRules {
    /// Whether tools are called.
    pub tool_choice: ToolChoice,
    /// The [`crate::Tool::name`]s of those that may be called, at least one; `None`: all.
    pub allowed: Option<Vec<String>>,
    /// Whether an answer calls at most one tool.
    pub is_one_call: bool,
    /// What the text of an answer is, where it calls no tool.
    pub form: AnswerForm,
    /// Most tokens of the thoughts; behind them the end of the thoughts is forced.
    pub n_thought_tokens_max: Option<usize>,
}

impl AnswerRules {
    /// Those of the offered tools that may be called.
    #[must_use]
    pub fn callable(&self, tools: &[Tool]) -> Vec<Tool> {
        let may_call = |tool: &&Tool| match &self.allowed {
            None => true,
            Some(allowed) => allowed.contains(&tool.name),
        };
        tools.iter().filter(may_call).cloned().collect()
    }
}

/// Whether tools are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolChoice {
    /// As the model likes.
    #[default]
    Auto,
    /// No tool is called.
    None,
    /// At least one is.
    Required,
    /// The one of this [`crate::Tool::name`] is.
    Named(String),
}

/// What the text of an answer is.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum AnswerForm {
    /// Any text.
    #[default]
    Free,
    /// A JSON object.
    JsonObject,
    /// A JSON value of this schema.
    JsonSchema(Json),
    /// A text of this grammar, in the dialect of Lark that llguidance reads.
    Lark(String),
    /// A text that this regular expression matches as a whole.
    Regex(String),
}
