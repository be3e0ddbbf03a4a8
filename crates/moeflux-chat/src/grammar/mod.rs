//! Grammars of answers: from the rules of a request to a mask of tokens.
//!
//! [`Grammars`] belongs to a model and is shared by its answers. It turns [`AnswerRules`] into a
//! [`Constraint`], or into a [`RuleError`] that names the rule that cannot be enforced and the
//! reason.
//! * `schema` cleans a client's schema, with the help of `keywords`, `pattern`, `multiples` and
//!   `growth`.
//! * `lark` checks a client's grammar; `calls` writes the grammar of calls.
//! * `vocabulary`, `marker` and `model` adapt a model for llguidance and the constraint; `problems`
//!   rewrites llguidance's errors as sentences.
//! * `bare` finds calls without a marker.
//! * `body` constrains the rest of an answer, `constraint` all of it.
//!
//! **Invariant:** every rule is enforced, or the request is refused; whatever a client sends, both
//! take bounded work. This module is independent of API dialects and sessions.

mod schema;
mod lark;
mod calls;
mod vocabulary;
mod marker;
mod problems;
mod model;
mod bare;
mod body;
mod constraint;

pub use constraint::Constraint;

use std::fmt;
use std::sync::{Arc, OnceLock};

use llguidance::api::GrammarWithLexer;
use moeflux::ModelText;
use serde_json::json;

use crate::answer_reader::{AnswerReader, AnswerStart};
use crate::calls::format::CallFormat;
use crate::conversation::Tool;
use crate::format::ChatFormat;
use crate::grammar::bare::BareStart;
use crate::grammar::body::{AfterCall, BodyConstraint, WatchedText};
use crate::grammar::calls::{CallScope, OfferedTool};
use crate::grammar::constraint::ThoughtConstraint;
use crate::grammar::marker::Marker;
use crate::grammar::model::{Author, GrammarModel, LEXER_STATES_MAX};
use crate::grammar::schema::Unenforced;
use crate::rules::{AnswerForm, AnswerRules, ToolChoice};
use crate::thoughts::ThoughtFormat;

/// The subject of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RulePart {
    /// [`AnswerRules::tool_choice`].
    ToolChoice,
    /// [`AnswerRules::form`].
    Form,
    /// The model itself.
    Model,
}

/// The reason why the rules of an answer cannot be enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// The rule at fault.
    pub part: RulePart,
    /// One line, with a way out.
    pub problem: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for RuleError {}

/// The end of a thought, where the template does not show it.
const THOUGHT_END: &str = "\n</think>\n\n";

/// The header of a text message.
const FINAL: &str = "<|channel|>final<|message|>";

/// Maximum number of tools that are tried one by one if the grammar of all tools is rejected.
const TRIED_TOOLS_MAX: usize = 200;

/// The name by which another grammar refers to a form's grammar.
const FORM: &str = "form";

/// Turns rules for the answers of one model into constraints. Cheap to create; the tables of the
/// model are built for the first answer that needs them.
#[derive(Debug)]
pub struct Grammars {
    text: Arc<ModelText>,
    calls: Option<&'static CallFormat>,
    thoughts: &'static ThoughtFormat,
    thought_end: String,
    n_lexer_states: usize,
    model: OnceLock<Result<Arc<GrammarModel>, String>>,
}

/// Upper bound on the memory of a model's tables per token of the vocabulary, during construction
/// and afterwards.
const TABLE_BYTES_PER_TOKEN: usize = 512;

impl Grammars {
    /// Creates the grammars of a model that writes calls in this format.
    #[must_use]
    pub fn new(text: Arc<ModelText>, calls: Option<&'static CallFormat>) -> Self {
        let (thoughts, thought_end) = (ThoughtFormat::usual(), THOUGHT_END.to_owned());
        let n_lexer_states = LEXER_STATES_MAX;
        Self { text, calls, thoughts, thought_end, n_lexer_states, model: OnceLock::new() }
    }

    /// Creates the grammars of a model with this chat template.
    #[must_use]
    pub fn of_format(text: Arc<ModelText>, format: &ChatFormat) -> Self {
        let thoughts = format.thought_format();
        let grammars = Self::new(text, format.call_format()).with_thoughts(thoughts);
        match format.thought_end() {
            Some(end) => grammars.with_thought_end(end),
            None => grammars,
        }
    }

    /// Sets the thought format.
    #[must_use]
    pub fn with_thoughts(self, thoughts: &'static ThoughtFormat) -> Self {
        let thought_end = match thoughts.next() {
            Some(next) => format!("{}{next}", thoughts.close),
            None => format!("\n{}\n\n", thoughts.close),
        };
        Self { thoughts, thought_end, ..self }
    }

    /// Sets the text with which the template ends thoughts, from
    /// [`crate::ChatFormat::thought_end`].
    #[must_use]
    pub fn with_thought_end(self, thought_end: String) -> Self {
        // Without its marker a thought would never end.
        if thought_end.contains(self.thoughts.close) { Self { thought_end, ..self } } else { self }
    }

    /// Limits the lexer states of each answer, at 1 to 2 kB each. An answer that needs more fails.
    #[must_use]
    pub fn with_lexer_states(self, n_max: usize) -> Self {
        Self { n_lexer_states: n_max.min(LEXER_STATES_MAX), ..self }
    }

    /// Returns an upper bound on the bytes of a model's tables for this vocabulary.
    #[must_use]
    pub fn table_bytes(text: &ModelText) -> usize {
        text.tokenizer().vocab_size().saturating_mul(TABLE_BYTES_PER_TOKEN)
    }

    /// Builds the tables of the model now.
    ///
    /// # Errors
    /// A [`RuleError`] of [`RulePart::Model`] if llguidance cannot use the model's vocabulary.
    pub fn prepare(&self) -> Result<(), RuleError> {
        self.model().map(drop)
    }

    /// Creates the constraint for an answer; `None` if the rules demand nothing.
    ///
    /// # Errors
    /// A [`RuleError`] that names the rule that cannot be enforced, and the reason.
    pub fn constraint(
        &self,
        rules: &AnswerRules,
        tools: &[Tool],
        start: AnswerStart,
    ) -> Result<Option<Constraint>, RuleError> {
        let Some(body) = self.body(rules, tools, start)? else { return Ok(None) };
        let n_tokens_max = rules.n_thought_tokens_max.filter(|_| start != AnswerStart::Text);
        if matches!(body, BodyConstraint::Free) && n_tokens_max.is_none() {
            return Ok(None);
        }
        let model = self.model()?;
        if body.is_bound() && !model.vocabulary.has_end() {
            let problem =
                "the model has no token that ends an answer, so no grammar can be enforced";
            return Err(RuleError { part: RulePart::Model, problem: problem.to_owned() });
        }
        let closing = model.vocabulary.encode(&self.thought_end, true);
        let close = self.thoughts.close;
        let at = self.thought_end.find(close).map_or(0, |at| at + close.len());
        let after = self.thought_end[at..].to_owned();
        let is_written = after.trim_ascii().is_empty() || self.thoughts.next().is_some();
        let after = if is_written { after } else { String::new() };
        let thoughts = ThoughtConstraint { n_tokens_max, closing, after };
        let constraint = Constraint::new(model, start, body, thoughts);
        // In an answer of another form, text that looks like a call may be legitimate.
        let is_free = rules.form == AnswerForm::Free && rules.tool_choice != ToolChoice::None;
        Ok(Some(match self.calls.filter(|_| is_free && !tools.is_empty()) {
            Some(format) => {
                let reader = AnswerReader::new(start, self.thoughts);
                constraint.ending_repeats(reader.with_calls(format, tools))
            }
            None => constraint,
        }))
    }

    fn model(&self) -> Result<Arc<GrammarModel>, RuleError> {
        let make = || {
            let model = GrammarModel::new(self.text.clone(), self.thoughts, self.calls)?;
            Ok(Arc::new(model.with_lexer_states(self.n_lexer_states)))
        };
        let model = self.model.get_or_init(make);
        let refused =
            |problem: &String| RuleError { part: RulePart::Model, problem: problem.clone() };
        model.as_ref().map(Arc::clone).map_err(refused)
    }

    /// Returns the constraint after the thoughts; `None` if neither that nor the thoughts are
    /// constrained.
    fn body(
        &self,
        rules: &AnswerRules,
        tools: &[Tool],
        start: AnswerStart,
    ) -> Result<Option<BodyConstraint>, RuleError> {
        let form = form(&rules.form).map_err(refused_form)?;
        let form = form.map(|grammar| FormGrammar { grammar, front: self.front_of_form(start) });
        let call_constraint = self.call_constraint(rules, tools)?;
        let bound = |matcher| Ok(Some(BodyConstraint::Bound(Box::new(matcher))));
        match (form, call_constraint) {
            (None, None) if self.thoughts.next().is_none() => {
                Ok(rules.n_thought_tokens_max.map(|_| BodyConstraint::Free))
            }
            (None, None) => {
                let is_limited = rules.n_thought_tokens_max.is_some();
                let watched = is_limited.then(|| self.watched(rules, false)).transpose()?;
                Ok(watched.map(BodyConstraint::Watched))
            }
            (Some(form), None | Some(CallConstraint::Forbidden)) => {
                bound(self.matcher_of_form(form, &rules.form)?)
            }
            (None, Some(CallConstraint::Forbidden)) => {
                let watched = self.watched(rules, true)?.and_without(self.opener()?);
                Ok(Some(BodyConstraint::Watched(watched)))
            }
            (None, Some(CallConstraint::Free(requested))) => {
                let requested = RequestedCalls {
                    is_one_call: rules.is_one_call,
                    scope: CallScope::AfterOpener,
                    ..requested
                };
                let call = self.matcher_of_calls(&requested, None, Author::Ours)?;
                let after_call = if calls::ends_answer(requested.format, &self.text) {
                    AfterCall::End
                } else if rules.is_one_call {
                    AfterCall::Text
                } else {
                    AfterCall::Calls
                };
                let watched = self.watched(rules, true)?;
                let watched = watched.with_calls(self.opener()?, call, after_call);
                let bare = requested.format.is_bare();
                let bare = bare.then(|| BareStart::new(requested.format, requested.tools()));
                Ok(Some(BodyConstraint::Watched(match bare {
                    Some(bare) => watched.with_bare_calls(bare),
                    None => watched,
                })))
            }
            (Some(form), Some(CallConstraint::Free(requested))) if requested.format.is_bare() => {
                let requested = RequestedCalls { is_one_call: rules.is_one_call, ..requested };
                // In one grammar, the literals of calls would exclude objects that begin alike.
                let form = self.matcher_of_form(form, &rules.form)?;
                let calls = self.matcher_of_calls(&requested, None, Author::Ours)?;
                Ok(Some(BodyConstraint::Either(vec![calls, form])))
            }
            (form, Some(CallConstraint::Free(requested) | CallConstraint::Demanded(requested))) => {
                let front = self.front_of_calls(requested.format, start);
                let requested =
                    RequestedCalls { is_one_call: rules.is_one_call, front, ..requested };
                let form = form.filter(|_| !requested.is_demanded);
                if let Some(form) = &form {
                    // Its own errors must not be blamed on the tools.
                    self.matcher_of_form(form.clone(), &rules.form)?;
                }
                bound(self.matcher_of_calls(&requested, form, author(&rules.form))?)
            }
        }
    }

    /// Creates text without calls that bypass the grammar. If thoughts are limited and are
    /// messages, it also excludes further thoughts, because thoughts after a text would not be
    /// counted.
    fn watched(&self, rules: &AnswerRules, has_calls: bool) -> Result<WatchedText, RuleError> {
        let model = self.model()?;
        let watched =
            WatchedText::without(model.other_openers.iter().filter(|_| has_calls).cloned());
        let is_limited = rules.n_thought_tokens_max.is_some() && self.thoughts.next().is_some();
        Ok(if is_limited { watched.and_without(model.open.clone()) } else { watched })
    }

    /// Returns the text before a form in an answer with this start, for a grammar.
    fn front_of_form(&self, start: AnswerStart) -> String {
        let is_message = self.thoughts.next().is_some() && start != AnswerStart::Text;
        let front = if is_message { FINAL } else { "" };
        calls::written(front, &self.thoughts.markers(), self.text.tokenizer())
    }

    /// Returns the text before calls.
    fn front_of_calls(&self, format: &CallFormat, start: AnswerStart) -> String {
        let is_within = self.thoughts.next().is_some() && start == AnswerStart::Text;
        let front = if is_within { format.after_text } else { "" };
        calls::written(front, &self.thoughts.markers(), self.text.tokenizer())
    }

    fn opener(&self) -> Result<Arc<Marker>, RuleError> {
        Ok(self.model()?.opener.clone().expect("the format of calls is known"))
    }

    /// Returns the constraint on calls; `None` if there is none.
    fn call_constraint<'t>(
        &self,
        rules: &AnswerRules,
        offered: &'t [Tool],
    ) -> Result<Option<CallConstraint<'t>>, RuleError> {
        let choice = &rules.tool_choice;
        let refused = |problem: String| RuleError { part: RulePart::ToolChoice, problem };
        let is_demanded = matches!(choice, ToolChoice::Required | ToolChoice::Named(_));
        let is_allowed = |tool: &&Tool| {
            rules.allowed.as_ref().is_none_or(|allowed| allowed.contains(&tool.name))
        };
        let is_named = |tool: &&Tool| match choice {
            ToolChoice::Named(name) => tool.name == *name,
            _ => true,
        };
        let tools: Vec<&Tool> = offered.iter().filter(is_allowed).filter(is_named).collect();
        match (self.calls, choice) {
            (None, _) if is_demanded => Err(refused(
                "this model's chat template has no known tool-call format: a call cannot be \
                 required"
                    .to_owned(),
            )),
            (Some(_), ToolChoice::Named(name)) if tools.is_empty() => {
                Err(refused(format!("there is no tool `{name}` that may be called")))
            }
            (Some(_), _) if tools.is_empty() && is_demanded => {
                Err(refused("a call is required, but no tool is available".to_owned()))
            }
            (None, _) => Ok(None),
            (Some(_), _) if offered.is_empty() => Ok(None),
            (Some(_), choice) if *choice == ToolChoice::None || tools.is_empty() => {
                Ok(Some(CallConstraint::Forbidden))
            }
            (Some(format), _) => {
                let offered = tools.into_iter().map(OfferedTool::new).collect();
                let (scope, is_one_call, front) = (CallScope::Turn, false, String::new());
                let requested =
                    RequestedCalls { format, offered, scope, front, is_one_call, is_demanded };
                Ok(Some(if is_demanded {
                    CallConstraint::Demanded(requested)
                } else {
                    CallConstraint::Free(requested)
                }))
            }
        }
    }

    fn matcher_of_form(
        &self,
        FormGrammar { grammar, front }: FormGrammar,
        form: &AnswerForm,
    ) -> Result<llguidance::Matcher, RuleError> {
        let grammars = if front.is_empty() {
            vec![grammar]
        } else {
            let whole = format!("start: {front} @{FORM}\n");
            vec![GrammarWithLexer::from_lark(whole), grammar]
        };
        let matcher = self.model()?.matcher(grammars, author(form));
        matcher.map_err(|problem| refused_form(explained(form, problem)))
    }

    /// Builds the grammar of calls, or of calls or a form; the form is known to be valid. A tool
    /// whose schema llguidance rejects accepts any object as its arguments; if all schemas together
    /// are too much, every tool does.
    fn matcher_of_calls(
        &self,
        requested: &RequestedCalls<'_>,
        form: Option<FormGrammar>,
        author: Author,
    ) -> Result<llguidance::Matcher, RuleError> {
        let model = self.model()?;
        let matcher = |offered: &[OfferedTool<'_>], form: Option<&FormGrammar>| {
            let scope = (requested.scope, requested.is_one_call);
            let rules = calls::rules(requested.format, offered, scope, &self.text);
            let or_form = form.map(|form| format!(" | {} @{FORM}", form.front));
            let or_form = or_form.unwrap_or_default();
            let start = format!("start: {} calls{or_form}\n", requested.front);
            let calls = GrammarWithLexer::from_lark(format!("{start}{rules}"));
            let form = form.map(|form| form.grammar.clone());
            model.matcher(std::iter::once(calls).chain(form).collect(), author)
        };
        let mut offered = requested.offered.clone();
        calls::fit(requested.format, &mut offered, &self.text);
        if let Ok(matcher) = matcher(&offered, form.as_ref()) {
            return Ok(matcher);
        }
        let strict: Vec<&mut OfferedTool<'_>> =
            offered.iter_mut().filter(|it| it.is_strict()).collect();
        if strict.len() <= TRIED_TOOLS_MAX {
            for tool in strict {
                if matcher(std::slice::from_ref(tool), None).is_err() {
                    tool.loosen();
                }
            }
            if let Ok(matcher) = matcher(&offered, form.as_ref()) {
                return Ok(matcher);
            }
        }
        offered.iter_mut().for_each(OfferedTool::loosen);
        matcher(&offered, form.as_ref()).map_err(|problem| RuleError {
            part: RulePart::ToolChoice,
            problem: format!("no grammar can be made of the tools: {problem}; offer fewer"),
        })
    }
}

/// The constraint on calls.
enum CallConstraint<'t> {
    Forbidden,
    Free(RequestedCalls<'t>),
    Demanded(RequestedCalls<'t>),
}

/// The calls that a grammar must allow.
struct RequestedCalls<'t> {
    format: &'static CallFormat,
    offered: Vec<OfferedTool<'t>>,
    scope: CallScope,
    /// The text before the calls.
    front: String,
    is_one_call: bool,
    is_demanded: bool,
}

impl RequestedCalls<'_> {
    fn tools(&self) -> Arc<[Tool]> {
        self.offered.iter().map(|it| it.tool().clone()).collect()
    }
}

/// The grammar of the form of an answer's text.
#[derive(Clone)]
struct FormGrammar {
    grammar: GrammarWithLexer,
    /// The text before the form.
    front: String,
}

fn refused_form(problem: String) -> RuleError {
    RuleError { part: RulePart::Form, problem }
}

/// Returns the author of a form's grammar.
fn author(form: &AnswerForm) -> Author {
    let is_clients = matches!(form, AnswerForm::Lark(_) | AnswerForm::Regex(_));
    if is_clients { Author::Client } else { Author::Ours }
}

/// Rewrites llguidance's error about a form for the client.
fn explained(form: &AnswerForm, problem: String) -> String {
    match form {
        AnswerForm::JsonSchema(schema) => schema::explained(schema, &problem),
        AnswerForm::Lark(_) => format!("the grammar: {problem}"),
        AnswerForm::Regex(_) => format!("the regular expression: {problem}"),
        AnswerForm::Free | AnswerForm::JsonObject => problem,
    }
}

/// Returns the grammar of a form; `None` for any text.
fn form(form: &AnswerForm) -> Result<Option<GrammarWithLexer>, String> {
    let of_schema = |schema| -> Result<GrammarWithLexer, String> {
        let schema = schema::prepare(schema, Unenforced::Refused)?;
        Ok(GrammarWithLexer::from_json_schema(schema))
    };
    let grammar = match form {
        AnswerForm::Free => return Ok(None),
        AnswerForm::JsonObject => of_schema(&json!({"type": "object"}))?,
        AnswerForm::JsonSchema(schema) => of_schema(schema)?,
        AnswerForm::Lark(grammar) => {
            let checked = lark::check_grammar(grammar);
            let checked = checked.map_err(|problem| format!("the grammar: {problem}"))?;
            GrammarWithLexer::from_lark(checked)
        }
        AnswerForm::Regex(regex) => {
            let checked = lark::check_regex(regex);
            checked.map_err(|problem| format!("the regular expression: {problem}"))?;
            GrammarWithLexer::from_regex(regex)
        }
    };
    Ok(Some(GrammarWithLexer { name: Some(FORM.to_owned()), ..grammar }))
}

#[cfg(test)]
mod tests;
