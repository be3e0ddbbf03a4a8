//! The constraints on an answer, apart from the conversation.
//!
//! **Invariant:** rules record a client's request; whether a model and a grammar can enforce them
//! is decided when the grammar is built. This module is independent of API dialects.

use serde_json::Value as Json;

use crate::conversation::Tool;
use crate::options::ChatOptions;

/// The constraints on an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnswerRules {
    /// Whether tools are called.
    pub tool_choice: ToolChoice,
    /// The [`crate::Tool::name`]s of the callable tools, at least one; `None` allows all.
    pub allowed: Option<Vec<String>>,
    /// Whether an answer calls at most one tool.
    pub is_one_call: bool,
    /// The form of the answer's text, if it calls no tool.
    pub form: AnswerForm,
    /// Upper bound on the tokens of the thoughts; then their end is forced. `None` forbids thoughts
    /// before a form or a forced call, unless [`ChatOptions`] ask for them, and does not limit them
    /// before any other answer.
    pub n_thought_tokens_max: Option<usize>,
}

impl AnswerRules {
    /// Returns the callable tools among those offered.
    #[must_use]
    pub fn callable(&self, tools: &[Tool]) -> Vec<Tool> {
        let may_call = |tool: &&Tool| match &self.allowed {
            None => true,
            Some(allowed) => allowed.contains(&tool.name),
        };
        tools.iter().filter(may_call).cloned().collect()
    }

    /// Fills in the default limit on thoughts. A model may think until its tokens are used up
    /// although its template asks it not to, so an answer in a required form starts without
    /// thoughts unless they were requested.
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
    /// The model decides.
    #[default]
    Auto,
    /// No tool is called.
    None,
    /// At least one tool is called.
    Required,
    /// The tool of this [`crate::Tool::name`] is called.
    Named(String),
}

/// The form of an answer's text.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum AnswerForm {
    /// Any text.
    #[default]
    Free,
    /// A JSON object.
    JsonObject,
    /// A JSON value that satisfies this schema. The model does not see the schema: say in the
    /// conversation what the values mean.
    JsonSchema(Json),
    /// A text of this grammar, in the Lark dialect of llguidance.
    Lark(String),
    /// A text that this regular expression matches completely.
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
            // Thoughts are requested in each of three ways.
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
