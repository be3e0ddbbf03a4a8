//! What an answer is bound to, beside the conversation.
//!
//! **Invariant:** rules say what a client asked for; whether a model and a grammar can hold them is
//! found where the grammar is made. Knows no dialect.

use serde_json::Value as Json;

use crate::conversation::Tool;
use crate::options::ChatOptions;

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
    /// Most tokens of the thoughts; behind them the end of the thoughts is forced. `None`: none in
    /// front of a form or of a forced call, unless [`ChatOptions`] ask for them, and as many as the
    /// model likes in front of any other answer.
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

    /// The same with the limit on thoughts that follows where none is given. A model may think
    /// although its template asks it not to, until its tokens are spent: what has to be of a form
    /// comes at once, unless thoughts were asked for.
    pub(crate) fn with_thought_limit(&self, options: &ChatOptions) -> Self {
        let is_forced = matches!(self.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
        let is_bound = is_forced || self.form != AnswerForm::Free;
        let n_thought_tokens_max = match (options.thinking, self.n_thought_tokens_max) {
            (Some(false), _) if is_bound => Some(0),
            (None, None) if is_bound && !options.names_effort() => Some(0),
            (_, given) => given,
        };
        Self { n_thought_tokens_max, ..self.clone() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_are_left_out_in_front_of_forms_and_forced_calls() {
        let limit = |rules: &AnswerRules, thinking, n_max, effort: Option<&str>| {
            let rules = AnswerRules { n_thought_tokens_max: n_max, ..rules.clone() };
            let mut options = ChatOptions { thinking, ..ChatOptions::default() };
            if let Some(effort) = effort {
                options.variables.insert("reasoning_effort".into(), effort.into());
            }
            rules.with_thought_limit(&options).n_thought_tokens_max
        };
        let free = AnswerRules::default();
        let form = AnswerRules { form: AnswerForm::JsonObject, ..AnswerRules::default() };
        let forced = AnswerRules { tool_choice: ToolChoice::Required, ..AnswerRules::default() };
        for bound in [&form, &forced] {
            assert_eq!(limit(bound, None, None, None), Some(0));
            assert_eq!(limit(bound, Some(false), Some(9), Some("low")), Some(0));
            // They are asked for in each of three ways.
            assert_eq!(limit(bound, Some(true), None, None), None);
            assert_eq!(limit(bound, None, Some(9), None), Some(9));
            assert_eq!(limit(bound, None, None, Some("high")), None);
        }
        // Other answers follow the template.
        assert_eq!(limit(&free, None, None, None), None);
        assert_eq!(limit(&free, Some(false), None, None), None);
        assert_eq!(limit(&free, Some(false), Some(0), None), Some(0));
    }
}
