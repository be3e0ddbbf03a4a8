//! Schemas, grammars and expressions, checked from the first token of an answer.

use serde_json::json;

use super::*;

#[track_caller]
fn check(form: &AnswerForm, text: &str, expected: Fate) {
    let model = model_of(&["<|special|>"], &[]);
    let found = offer(&mut form_constraint(&model, form.clone()), &plain(text), N_LOGITS);
    assert_eq!(found, expected, "{text}");
}

#[test]
fn answers_follow_their_form_and_end_after_it() {
    use Fate::{Stopped, Unfinished, Whole};
    let object = AnswerForm::JsonObject;
    check(&object, r#"{"a": [1, "b"], "c": null}"#, Whole);
    check(&object, "{\n  \"a\": 1\n}", Whole);
    check(&object, r#"{"a": 1"#, Unfinished);
    check(&object, "[1]", Stopped(0));
    check(&object, "{}{", Stopped(2));
    check(&object, "{\n\n\n\n", Stopped(3));
    let schema = AnswerForm::JsonSchema(json!({
        "type": "object",
        "properties": {"city": {"type": "string"}, "n": {"type": "integer", "minimum": 3}},
        "required": ["city", "n"], "additionalProperties": false,
        "x-guidance": {"whitespace_flexible": false, "lenient": true},
    }));
    check(&schema, r#"{"city": "Z\u00fcrich", "n": 3}"#, Stopped(15));
    check(&schema, "{\"city\": \"Z\u{fc}rich\\n\\u001b\", \"n\": 3}", Whole);
    check(&schema, r#"{"city":"","n":12}"#, Whole);
    check(&schema, r#"{"n":"#, Stopped(2));
    check(&schema, r#"{"city":"","n":2}"#, Stopped(16));
    let regex = AnswerForm::Regex("(yes|no)!{1,2}".to_owned());
    check(&regex, "yes!", Whole);
    check(&regex, "no!!", Whole);
    check(&regex, "no!!!", Stopped(4));
    check(&regex, "maybe", Stopped(0));
    let grammar = "start: greeting \" \" NAME\ngreeting: \"Hi\" | \"Bye\"\nNAME: /[A-Z][a-z]+/";
    let lark = AnswerForm::Lark(grammar.to_owned());
    check(&lark, "Bye Ada", Whole);
    check(&lark, "Bye A", Unfinished);
    check(&lark, "Hello", Stopped(1));
    let nested = "start: \"x=\" %json {\"enum\": [1, 22], \"x-guidance\": {}}";
    check(&AnswerForm::Lark(nested.to_owned()), "x=22", Whole);
}

#[test]
fn special_tokens_and_padding_are_never_in_an_answer() {
    let model = model_of(&["<|special|>"], &["<visible>"]);
    let mut constraint = form_constraint(&model, AnswerForm::JsonObject);
    assert_eq!(offer(&mut constraint, &plain("{\"a"), N_LOGITS), Fate::Unfinished);
    let found = allowed(&mut constraint, N_LOGITS);
    // An unfinished character may begin with any byte that begins a character.
    assert!(found.contains(&TokenId(0xc3)) && found.contains(&TokenId(b'<'.into())));
    assert!(!found.contains(&TokenId(0xff)) && !found.contains(&TokenId(0x80)));
    let visible = TokenId(258);
    let beyond: Vec<_> = found.iter().filter(|it| it.0 > 255).collect();
    assert_eq!(beyond, [&visible], "neither the end, nor the special one, nor padding");
    // A string with the text of a special token does not allow it either, nor does a forced token.
    let regex = AnswerForm::Regex("<\\|special\\|>".to_owned());
    let mut constraint = form_constraint(&model, regex);
    assert_eq!(forced(&mut constraint), plain("<|special|>"));
    // Rows that llguidance does not know: free text and thoughts.
    let rules = AnswerRules { n_thought_tokens_max: Some(9), ..AnswerRules::default() };
    let grammars = Grammars::new(model, None);
    let mut constraint = grammars.constraint(&rules, &[], AnswerStart::Thought).unwrap().unwrap();
    assert_eq!(allowed(&mut constraint, N_LOGITS).last(), Some(&visible));
    assert_eq!(allowed(&mut constraint, 10).len(), 10);
}

#[test]
fn the_end_is_allowed_where_the_form_may_end() {
    let model = model_of(&[], &[]);
    let mut constraint = form_constraint(&model, AnswerForm::Regex("a{1,3}".to_owned()));
    assert!(!constraint.may_end() && !allowed(&mut constraint, N_LOGITS).contains(&END));
    constraint.accept(TokenId(b'a'.into()));
    assert!(constraint.may_end());
    assert_eq!(allowed(&mut constraint, N_LOGITS), [TokenId(b'a'.into()), END]);
    constraint.accept(TokenId(b'a'.into()));
    constraint.accept(TokenId(b'a'.into()));
    assert!(constraint.may_end());
    assert_eq!(allowed(&mut constraint, N_LOGITS), [END]);
    assert_eq!(forced(&mut constraint), []);
}

#[test]
fn forced_tokens_are_the_only_ones_allowed_and_canonical() {
    let model = demo();
    let schema = json!({
        "type": "object", "properties": {"temperature": {"const": "very cold indeed"}},
        "required": ["temperature"], "additionalProperties": false,
    });
    let mut constraint = form_constraint(&model, AnswerForm::JsonSchema(schema));
    let opening = model.tokenizer().encode_plain("{\"").unwrap();
    assert_eq!(offer(&mut constraint, &opening, DEMO_VOCAB), Fate::Unfinished);
    let tokens = forced(&mut constraint);
    let text = text_of(&model, &tokens);
    let whole = "temperature\": \"very cold indeed\"}";
    assert!(whole.starts_with(&text) && text.len() > 8, "{text:?}");
    let all = model.tokenizer().encode_plain(&format!("{{\"{text}")).unwrap();
    assert!(all.ends_with(&tokens), "{text:?}");
    assert_eq!(forced(&mut constraint), tokens, "asking again changes nothing");
    for token in tokens {
        assert_eq!(allowed(&mut constraint, DEMO_VOCAB), [token]);
        constraint.accept(token);
    }
    let rest = model.tokenizer().encode_plain(&whole[text.len()..]).unwrap();
    assert_eq!(offer(&mut constraint, &rest, DEMO_VOCAB), Fate::Whole);
}

#[test]
fn a_token_that_was_not_allowed_is_a_failure_and_not_a_panic() {
    let model = model_of(&[], &[]);
    let mut constraint = form_constraint(&model, AnswerForm::JsonObject);
    constraint.accept(TokenId(b'x'.into()));
    let problem = constraint.failure().unwrap().to_owned();
    assert!(problem.starts_with("the grammar of the answer failed: "), "{problem}");
    assert!(!problem.contains('\n'));
    let mut logits = vec![0.0; N_LOGITS];
    constraint.apply(&mut logits);
    assert!(logits.iter().all(|it| *it == f32::NEG_INFINITY));
    constraint.accept(TokenId(999));
    assert_eq!(constraint.failure(), Some(problem.as_str()));
    assert_eq!(forced(&mut constraint), []);
}

#[test]
fn limits_at_run_time_are_failures_of_the_answer() {
    // Each further letter doubles the number of ways to parse the text.
    let grammar = "start: a\na: \"x\" | a a | a a a | a a a a";
    let model = model_of(&[], &[]);
    let mut constraint = form_constraint(&model, AnswerForm::Lark(grammar.to_owned()));
    for _ in 0..100_000 {
        let mut logits = vec![0.0; N_LOGITS];
        constraint.apply(&mut logits);
        constraint.accept(TokenId(b'x'.into()));
        if constraint.failure().is_some() {
            break;
        }
    }
    let problem = constraint.failure().unwrap();
    assert!(problem.starts_with("the grammar of the answer failed: "), "{problem}");
}

#[test]
fn without_demands_there_is_nothing_to_hold() {
    fn is_shared<T: Send + Sync>(_: &T) {}
    let grammars = Grammars::new(model_of(&[], &[]), None);
    is_shared(&grammars);
    let found = grammars.constraint(&AnswerRules::default(), &[], AnswerStart::Open).unwrap();
    assert!(found.is_none());
    // A thought whose end was already written is not limited.
    let rules = AnswerRules { n_thought_tokens_max: Some(3), ..AnswerRules::default() };
    assert!(grammars.constraint(&rules, &[], AnswerStart::Text).unwrap().is_none());
}

/// llguidance's error for this grammar is a name from its code.
#[test]
fn a_grammar_that_cannot_be_written_is_refused_in_a_sentence() {
    let form = AnswerForm::Regex("a[^\\s\\S]".to_owned());
    let rules = AnswerRules { form, ..AnswerRules::default() };
    let grammars = Grammars::new(model_of(&[], &[]), None);
    let refused = grammars.constraint(&rules, &[], AnswerStart::Text).unwrap_err().problem;
    let told = "no token can come next: what the grammar requires here cannot be written";
    assert!(refused.contains(told), "{refused}");
}
