//! Answers that repeat a call.

use super::*;

#[test]
fn a_call_that_is_made_again_ends_the_answer() {
    let model = model_of(&[], &[]);
    let hermes = CallFormat::all().find(|it| it.title == "hermes");
    let grammars = Grammars::new(model, hermes);
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let tools = [Tool::function("get".into(), None, Some(schema))];
    let begun = |city: &str| {
        format!("<tool_call>\n{{\"name\": \"get\", \"arguments\": {{\"city\": \"{city}\"}}")
    };
    for tool_choice in [ToolChoice::Auto, ToolChoice::Required] {
        let rules = AnswerRules { tool_choice, ..AnswerRules::default() };
        let after = |city: &str| {
            let constraint = grammars.constraint(&rules, &tools, AnswerStart::Text);
            let mut constraint = constraint.unwrap().unwrap();
            let text = format!("{}}}\n</tool_call>\n{}", begun("\u{e9}"), begun(city));
            let fate = offer(&mut constraint, &plain(&text), N_LOGITS);
            (fate, allowed(&mut constraint, N_LOGITS), forced(&mut constraint).is_empty())
        };
        assert_eq!(after("\u{e9}"), (Fate::Whole, vec![END], true));
        let (fate, allowed, _) = after("B");
        assert_eq!(fate, Fate::Unfinished);
        assert!(!allowed.contains(&END));
    }
}

#[test]
fn a_form_that_looks_like_calls_goes_on() {
    let model = model_of(&[], &[]);
    let hermes = CallFormat::all().find(|it| it.title == "hermes");
    let grammars = Grammars::new(model, hermes);
    let tools = [Tool::function("get".into(), None, Some(json!({"type": "object"})))];
    let line = "<tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>";
    let form = AnswerForm::Lark(format!("start: LINE LINE \"end\"\nLINE: {line:?}"));
    let rules = AnswerRules { form, ..AnswerRules::default() };
    let mut constraint = grammars.constraint(&rules, &tools, AnswerStart::Text).unwrap().unwrap();
    let text = format!("{line}{line}end");
    assert_eq!(offer(&mut constraint, &plain(&text), N_LOGITS), Fate::Whole);
}
