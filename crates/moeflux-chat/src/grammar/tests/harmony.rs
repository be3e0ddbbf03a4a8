//! Answers of messages: thoughts, their budget, calls and forms.

use serde_json::json;

use super::*;
use crate::thoughts::{HARMONY, HARMONY_MARKERS};

const CALLED: &str = "<|channel|>commentary to=functions.get <|constrain|>json<|message|>";
const NEXT: &str = "<|end|><|start|>assistant";
const THOUGHT: &str = "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant";
const FINAL: &str = "<|channel|>final<|message|>";

/// Like gpt-oss, where a call ends the answer.
fn gpt_oss() -> Arc<ModelText> {
    model_with_ends(&HARMONY_MARKERS, &["<|return|>", "<|call|>"])
}

fn token(marker: &str) -> TokenId {
    let place = HARMONY_MARKERS.iter().position(|it| *it == marker).unwrap();
    TokenId(257 + u32::try_from(place).unwrap())
}

fn tools() -> Vec<Tool> {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}},
        "required": ["city"]});
    vec![Tool::function("get".into(), None, Some(schema))]
}

fn constraint(model: &Arc<ModelText>, rules: &AnswerRules, start: AnswerStart) -> Constraint {
    let format = CallFormat::all().find(|it| it.title == "harmony");
    let grammars = Grammars::new(model.clone(), format).with_thoughts(&HARMONY);
    grammars.constraint(rules, &tools(), start).unwrap().unwrap()
}

#[track_caller]
fn check(rules: &AnswerRules, start: AnswerStart, text: &str, expected: Fate) {
    let model = gpt_oss();
    let mut constraint = constraint(&model, rules, start);
    let tokens = model.tokenizer().encode(text).unwrap();
    let found = offer(&mut constraint, &tokens, N_LOGITS);
    match (&found, &expected) {
        (Fate::Stopped(_), Fate::Stopped(_)) => {}
        _ => assert_eq!(found, expected, "{text:?} at {start:?}"),
    }
}

const STOPPED: Fate = Fate::Stopped(0);

#[test]
fn a_required_call_may_follow_any_number_of_thoughts() {
    use AnswerStart::{Open, Text, Thought};
    let named = ToolChoice::Named("get".into());
    for tool_choice in [ToolChoice::Required, named] {
        let rules = AnswerRules { tool_choice, ..AnswerRules::default() };
        let call = format!("{CALLED}{{\"city\": \"B\"}}");
        check(&rules, Open, &call, Fate::Whole);
        check(&rules, Open, &format!("{THOUGHT}{call}"), Fate::Whole);
        check(&rules, Open, &format!("{THOUGHT}{THOUGHT}{call}"), Fate::Whole);
        check(&rules, Thought, &format!("so.{NEXT}{call}"), Fate::Whole);
        check(&rules, Thought, &format!("so.{NEXT}{THOUGHT}{call}"), Fate::Whole);
        check(&rules, Text, &format!("{NEXT}{call}"), Fate::Whole);
        check(&rules, Open, THOUGHT, Fate::Unfinished);
        check(&rules, Open, &format!("{CALLED}{{\"city\": 3}}"), STOPPED);
        check(&rules, Open, &format!("{CALLED}{{}}"), STOPPED);
        check(&rules, Open, &format!("{call} and so on"), STOPPED);
        check(&rules, Open, &format!("{THOUGHT}{FINAL}No."), STOPPED);
        check(&rules, Open, FINAL, STOPPED);
        check(&rules, Open, "No.", STOPPED);
        check(&rules, Text, &call, STOPPED);
    }
}

#[test]
fn a_call_ends_the_answer_where_its_end_does() {
    let rules = AnswerRules { tool_choice: ToolChoice::Required, ..AnswerRules::default() };
    for tool_choice in [ToolChoice::Auto, ToolChoice::Required] {
        let model = gpt_oss();
        let rules = AnswerRules { tool_choice, ..rules.clone() };
        let mut constraint = constraint(&model, &rules, AnswerStart::Open);
        let text = format!("{THOUGHT}{CALLED}{{\"city\": \"B\"}}");
        let tokens = model.tokenizer().encode(&text).unwrap();
        assert_eq!(offer(&mut constraint, &tokens, N_LOGITS), Fate::Whole);
        let ends = [END, token("<|return|>"), token("<|call|>")];
        assert_eq!(allowed(&mut constraint, N_LOGITS), ends);
    }
}

#[test]
fn calls_of_the_models_own_will_are_held_in_one_way() {
    use AnswerStart::Open;
    let rules = AnswerRules::default();
    let said = format!("{THOUGHT}<|channel|>commentary<|message|>I look to=functions.it.{NEXT}");
    check(&rules, Open, "No header.", Fate::Whole);
    check(&rules, Open, &format!("{THOUGHT}{FINAL}No."), Fate::Whole);
    check(&rules, Open, &format!("{said}{CALLED}{{\"city\": \"B\"}}"), Fate::Whole);
    check(&rules, Open, &format!("{said}{CALLED}{{\"town\""), STOPPED);
    let other = "<|channel|>commentary to=functions.other";
    check(&rules, Open, other, STOPPED);
    for text in [
        " to=functions.get".to_owned(),
        format!("{THOUGHT} to=functions.get"),
        format!("{said} to=functions.get"),
        "<|channel|>analysis to=functions.get".to_owned(),
        "<|channel|>final to=functions.get".to_owned(),
    ] {
        check(&rules, Open, &text, STOPPED);
    }
    let none = AnswerRules { tool_choice: ToolChoice::None, ..AnswerRules::default() };
    check(&none, Open, &format!("{said}{FINAL}No."), Fate::Whole);
    check(&none, Open, CALLED, STOPPED);
    check(&none, Open, " to=functions.get", STOPPED);
}

#[test]
fn a_form_is_that_of_the_text() {
    use AnswerStart::{Open, Text, Thought};
    let form = AnswerForm::JsonSchema(json!({"const": "fine"}));
    let rules = AnswerRules { form, tool_choice: ToolChoice::None, ..AnswerRules::default() };
    check(&rules, Open, &format!("{FINAL}\"fine\""), Fate::Whole);
    check(&rules, Open, &format!("{THOUGHT}{FINAL}\"fine\""), Fate::Whole);
    check(&rules, Thought, &format!("so.{NEXT}{FINAL}\"fine\""), Fate::Whole);
    check(&rules, Text, "\"fine\"", Fate::Whole);
    check(&rules, Open, &format!("{FINAL}fine"), STOPPED);
    check(&rules, Open, "\"fine\"", STOPPED);
    let either = AnswerRules { tool_choice: ToolChoice::Auto, ..rules };
    check(&either, Open, &format!("{THOUGHT}{FINAL}\"fine\""), Fate::Whole);
    check(&either, Open, &format!("{THOUGHT}{CALLED}{{\"city\": \"B\"}}"), Fate::Whole);
    check(&either, Open, &format!("{FINAL}fine"), STOPPED);
}

#[test]
fn thoughts_have_a_budget_over_all_messages() {
    let model = gpt_oss();
    let encode = |text: &str| model.tokenizer().encode(text).unwrap();
    let rules = |tool_choice| AnswerRules {
        tool_choice,
        n_thought_tokens_max: Some(4),
        ..AnswerRules::default()
    };
    for tool_choice in [ToolChoice::Auto, ToolChoice::Required] {
        let mut constraint = constraint(&model, &rules(tool_choice), AnswerStart::Open);
        let open = "<|channel|>analysis<|message|>";
        assert_ne!(offer(&mut constraint, &encode(&format!("{open}ab")), N_LOGITS), STOPPED);
        assert_eq!(forced(&mut constraint), []);
        // The end marker counts as well, as in other formats.
        assert_ne!(offer(&mut constraint, &encode("<|end|>"), N_LOGITS), STOPPED);
        assert_eq!(forced(&mut constraint), encode("<|start|>assistant"));
        for next in encode("<|start|>assistant") {
            constraint.accept(next);
        }
        assert_ne!(offer(&mut constraint, &encode(&format!("{open}c")), N_LOGITS), STOPPED);
        assert_eq!(forced(&mut constraint), encode(NEXT));
        for next in encode(NEXT) {
            constraint.accept(next);
        }
        let again = encode(open);
        assert!(matches!(offer(&mut constraint.clone(), &again, N_LOGITS), Fate::Stopped(_)));
        let call = encode(&format!("{CALLED}{{\"city\": \"B\"}}"));
        assert_eq!(offer(&mut constraint, &call, N_LOGITS), Fate::Whole);
    }
}

#[test]
fn without_a_budget_there_are_no_thoughts() {
    use AnswerStart::Open;
    let rules = AnswerRules { n_thought_tokens_max: Some(0), ..AnswerRules::default() };
    check(&rules, Open, "<|channel|>analysis<|message|>", STOPPED);
    check(&rules, Open, &format!("{FINAL}No."), Fate::Whole);
    // Thoughts after a text are excluded as well, because they would not be counted.
    let later = format!("<|channel|>commentary<|message|>I look.{NEXT}");
    check(&rules, Open, &format!("{later}<|channel|>analysis<|message|>"), STOPPED);
    check(&rules, Open, &format!("{later}{FINAL}No."), Fate::Whole);
}
