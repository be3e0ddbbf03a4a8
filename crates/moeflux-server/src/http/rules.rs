//! The rules that answers of a request are held to, and what reads these answers.
//!
//! **Invariant:** a rule that a request states is held, or the request is refused by the field that
//! states it.

use std::sync::Arc;

use moeflux::LogitMask;
use moeflux_chat::{
    AnswerForm, AnswerReader, AnswerRules, AnswerStart, CallFormat, Constraint, HiddenMarkers,
    Refusal, RulePart, ThoughtFormat, Tool, ToolChoice,
};
use moeflux_schedule::Masks;

use crate::http::shared::Shared;
use crate::wire::{Failure, Request};

/// How answers to a prompt are read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    start: AnswerStart,
    thoughts: &'static ThoughtFormat,
    /// Of the tools that may be called.
    calls: Option<(&'static CallFormat, Vec<Tool>)>,
    n_calls_max: usize,
    /// Whether the text may have to be JSON.
    has_form: bool,
}

impl Reading {
    /// Answers that begin like this and may call these tools, by these rules.
    pub(crate) fn new(
        shared: &Shared,
        rules: &AnswerRules,
        (start, thoughts): (AnswerStart, &'static ThoughtFormat),
        tools: Vec<Tool>,
    ) -> Self {
        let may_call = !tools.is_empty() && rules.tool_choice != ToolChoice::None;
        let calls = shared.calls.filter(|_| may_call).map(|format| (format, tools));
        let n_calls_max = if rules.is_one_call { 1 } else { usize::MAX };
        let has_form = rules.form != AnswerForm::Free;
        Self { start, thoughts, calls, n_calls_max, has_form }
    }

    /// A reader of one answer, and the tokens that it has to be told the text of.
    pub(crate) fn reader(&self, shared: &Shared) -> (AnswerReader, HiddenMarkers) {
        let tokenizer = shared.served.text.tokenizer();
        let reader = AnswerReader::new(self.start, self.thoughts);
        let markers = HiddenMarkers::of(tokenizer, self.thoughts);
        match &self.calls {
            None => (reader, markers),
            Some((format, tools)) => {
                let markers = markers.with_calls(tokenizer, format);
                let reader = reader.with_calls(format, tools).with_calls_max(self.n_calls_max);
                (if self.has_form { reader.with_json_text() } else { reader }, markers)
            }
        }
    }
}

/// What holds the answers to the rules of their request; `None` if these demand nothing.
pub(crate) fn masks(
    shared: &Shared,
    request: &Request,
    (start, tools): (AnswerStart, &[Tool]),
) -> Result<Option<Arc<dyn Masks>>, Failure> {
    let constraint = shared.grammars.constraint(&request.rules, tools, start);
    let constraint = constraint.map_err(|refusal| failure(request, refusal))?;
    Ok(constraint.map(|it| Arc::new(Prototype(it)) as Arc<dyn Masks>))
}

fn failure(request: &Request, refusal: Refusal) -> Failure {
    let field = match (refusal.part, &request.form_field) {
        (RulePart::Form, Some(field)) => field,
        _ => "tool_choice",
    };
    Failure::invalid(field, refusal.problem)
}

/// A constraint that no answer has moved.
#[derive(Debug)]
struct Prototype(Constraint);

impl Masks for Prototype {
    fn mask(&self) -> Box<dyn LogitMask> {
        Box::new(self.0.clone())
    }
}
