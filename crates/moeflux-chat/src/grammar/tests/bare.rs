//! Calls without a marker, as Llama 3 writes them.

use serde_json::json;

use super::*;

const CALL: &str = r#"{"name": "get", "parameters": {"city": "<B>", "exact": true}}"#;
const OTHER: &str = r#"{"name": "get_all", "parameters": {}}"#;
const MARKER: &str = "<|python_tag|>";

fn tools() -> Vec<Tool> {
    let get = json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "exact": {"type": "boolean"}},
        "required": ["city"],
    });
    vec![
        Tool::function("get".into(), None, Some(get)),
        Tool::function("get_all".into(), None, None),
    ]
}

fn constraint(model: &Arc<ModelText>, rules: &AnswerRules) -> Constraint {
    let format = CallFormat::all().find(|it| it.title == "llama_3");
    let grammars = Grammars::new(model.clone(), format);
    grammars.constraint(rules, &tools(), AnswerStart::Text).unwrap().unwrap()
}

fn rules(tool_choice: ToolChoice) -> AnswerRules {
    AnswerRules { tool_choice, ..AnswerRules::default() }
}

/// Returns models with the marker as a special token, as a visible token, and as text.
fn models() -> [Arc<ModelText>; 3] {
    [model_of(&[MARKER], &[]), model_of(&[], &[MARKER]), model_of(&[], &[])]
}

fn check_all(rules: &AnswerRules, cases: &[(&str, bool)]) {
    for model in models() {
        for (text, is_whole) in cases {
            let tokens = model.tokenizer().encode(text).unwrap();
            let found = offer(&mut constraint(&model, rules), &tokens, N_LOGITS);
            assert_eq!(found == Fate::Whole, *is_whole, "{text}: {found:?}");
        }
    }
}

#[test]
fn a_call_at_the_start_follows_its_schema_and_other_answers_are_free() {
    let marked = |text: &str| format!("{MARKER}{text}");
    let wrong = CALL.replace("city", "town");
    check_all(
        &rules(ToolChoice::Auto),
        &[
            (CALL, true),
            (OTHER, true),
            (&format!("\n {CALL}"), true),
            (&format!("{CALL}; {OTHER}"), true),
            (r#"{"name":"get","parameters": {"city":"<B>"}}"#, true),
            (&CALL.replace("{\"name", "{ \"type\":\"function\", \"name"), true),
            (&CALL.replace("parameters", "arguments"), true),
            (&wrong, false),
            (r#"{"name":"get","parameters": {"town":"<B>"}}"#, false),
            (&wrong.replace("{\"name", "{\"type\": \"function\", \"name"), false),
            (&CALL.replace("true", "1"), false),
            (&CALL.replace("{\"city", "\"{\"city"), false),
            (&CALL[..CALL.len() - 1], false),
            ("Just text.", true),
            (&format!("Text.\n{wrong}"), true),
            (r#"{"city": "B"}"#, true),
            (r#"{"name": "got", "parameters": {"town": 1}}"#, true),
            (r#"{"name": "get", "age": 7}"#, true),
            (r#"{"name": "get", "param"#, true),
            (&marked(CALL), true),
            (&marked(OTHER), true),
            (&marked(&wrong), false),
            (&marked("brave_search.call(query=\"B\")"), false),
        ],
    );
}

#[test]
fn a_choice_of_tools_is_held_without_markers() {
    let two = format!("{CALL}; {OTHER}");
    check_all(
        &rules(ToolChoice::Required),
        &[
            (CALL, true),
            (OTHER, true),
            (&two, true),
            ("Just text.", false),
            (&format!("{MARKER}{CALL}"), false),
            (&CALL.replace("city", "town"), false),
            (&CALL.replace("get", "got"), false),
        ],
    );
    let required = AnswerRules { is_one_call: true, ..rules(ToolChoice::Required) };
    check_all(&required, &[(CALL, true), (&two, false)]);
    let named = rules(ToolChoice::Named("get_all".into()));
    check_all(&named, &[(OTHER, true), (CALL, false)]);
    let none = rules(ToolChoice::None);
    check_all(&none, &[("{\"name\"", true), (&format!("{MARKER}{CALL}"), false)]);
    for model in models() {
        let tokens = forced(&mut constraint(&model, &rules(ToolChoice::Required)));
        assert_eq!(text_of(&model, &tokens), "{\"name\": \"get");
        assert_eq!(forced(&mut constraint(&model, &rules(ToolChoice::Auto))), []);
    }
}

#[test]
fn an_answer_is_a_bare_call_or_has_its_form() {
    let schema = json!({"type": "object", "properties": {"name": {}}, "required": ["a"]});
    let form = AnswerForm::JsonSchema(schema);
    let with_form = AnswerRules { form, ..rules(ToolChoice::Auto) };
    let wrong = CALL.replace("city", "town");
    check_all(
        &with_form,
        &[
            (CALL, true),
            (OTHER, true),
            (&wrong, false),
            (r#"{"a": 1}"#, true),
            (r#"{"name": 1, "a": 1}"#, true),
            (r#"{"name": "get", "a": 1}"#, true),
            (r#"{"a": 1, "names": 1}"#, true),
            (r#"{"name": 1}"#, false),
            ("Just text.", false),
        ],
    );
}

#[test]
fn a_token_may_span_the_key_and_the_arguments() {
    let model = model_of(&[], &["\": {\"", "\": [", "\":\"", "\":{", "\": "]);
    let [object, list, quoted, compact, key] = [257, 258, 259, 260, 261].map(TokenId);
    let mut start = constraint(&model, &rules(ToolChoice::Auto));
    let begun = plain("{\"name\": \"get\", \"parameters");
    assert_eq!(offer(&mut start, &begun, N_LOGITS), Fate::Whole);
    let found = allowed(&mut start, N_LOGITS);
    let is_allowed = [object, list, quoted, compact, key].map(|it| found.contains(&it));
    assert_eq!(is_allowed, [true, false, false, true, true]);
    for (token, rest) in [(object, "city\": \"B\"}}"), (compact, "\"city\": \"B\"}}")] {
        let tokens = [&[token][..], &plain(rest)].concat();
        assert_eq!(offer(&mut start.clone(), &tokens, N_LOGITS), Fate::Whole);
    }
    for (token, rest) in [(object, "town"), (compact, "\"town")] {
        let tokens = [&[token][..], &plain(rest)].concat();
        assert!(matches!(offer(&mut start.clone(), &tokens, N_LOGITS), Fate::Stopped(1..)));
    }
    let mut other = constraint(&model, &rules(ToolChoice::Auto));
    let tokens = [&plain("{\"names")[..], &[list]].concat();
    assert_eq!(offer(&mut other, &tokens, N_LOGITS), Fate::Whole);
}
