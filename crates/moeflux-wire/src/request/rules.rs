//! Combines the constraints on an answer from the separate fields.
//!
//! **Invariant:** no two of them contradict each other.

use moeflux_chat::{AnswerRules, ToolChoice};

use crate::failure::Failure;
use crate::request::form::RequestedForm;

/// Combines a tool choice with a form. Returns the rules and the path of the field that gave the
/// form. A form constrains the text of an answer, and an answer with a forced call may have no
/// text, so the two cannot be combined.
pub(crate) fn rules(
    choice: AnswerRules,
    form: RequestedForm,
    n_thought_tokens_max: Option<usize>,
) -> Result<(AnswerRules, Option<String>), Failure> {
    let rules = AnswerRules { n_thought_tokens_max, ..choice };
    let Some((path, form)) = form.found else { return Ok((rules, None)) };
    if matches!(rules.tool_choice, ToolChoice::Required | ToolChoice::Named(_)) {
        let problem = format!("forces a call, which cannot be combined with `{path}`");
        return Err(Failure::invalid("tool_choice", problem));
    }
    Ok((AnswerRules { form, ..rules }, Some(path)))
}

#[cfg(test)]
mod tests {
    use moeflux_chat::AnswerForm;

    use super::*;

    #[test]
    fn a_forced_call_has_no_form() {
        let found = |tool_choice| {
            let choice = AnswerRules { tool_choice, ..AnswerRules::default() };
            let form = RequestedForm { found: Some(("grammar".into(), AnswerForm::JsonObject)) };
            rules(choice, form, Some(5)).map_err(|failure| failure.message)
        };
        let expected = AnswerRules {
            form: AnswerForm::JsonObject,
            n_thought_tokens_max: Some(5),
            ..AnswerRules::default()
        };
        assert_eq!(found(ToolChoice::Auto), Ok((expected, Some("grammar".to_owned()))));
        assert!(found(ToolChoice::None).is_ok());
        let problem = "`tool_choice`: forces a call, which cannot be combined with `grammar`";
        assert_eq!(found(ToolChoice::Required), Err(problem.to_owned()));
        assert_eq!(found(ToolChoice::Named("f".into())), Err(problem.to_owned()));
    }
}
