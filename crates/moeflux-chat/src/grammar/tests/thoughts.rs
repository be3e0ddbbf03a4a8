//! Thoughts before the grammar, and their token limit.

use serde_json::json;

use super::*;

fn digits() -> AnswerForm {
    AnswerForm::Regex("[0-9]{2}".to_owned())
}

fn constraint(
    model: &Arc<ModelText>,
    form: AnswerForm,
    n_thought_tokens_max: Option<usize>,
    start: AnswerStart,
) -> Constraint {
    let rules = AnswerRules { form, n_thought_tokens_max, ..AnswerRules::default() };
    let grammars = Grammars::new(model.clone(), None);
    grammars.constraint(&rules, &[], start).unwrap().unwrap()
}

fn tokens(model: &ModelText, text: &str) -> Vec<TokenId> {
    model.tokenizer().encode(text).unwrap()
}

/// Returns models with the markers as text, as special tokens, and as visible tokens.
fn models() -> [Arc<ModelText>; 3] {
    let markers = ["<think>", "</think>"];
    [model_of(&[], &[]), model_of(&markers, &[]), model_of(&[], &markers)]
}

#[test]
fn a_grammar_begins_after_the_thought() {
    use AnswerStart::{Open, Text, Thought};
    for model in models() {
        let check = |start, text: &str, expected: Fate| {
            let mut constraint = constraint(&model, digits(), None, start);
            let found = offer(&mut constraint, &tokens(&model, text), N_LOGITS);
            match (&found, &expected) {
                (Fate::Stopped(_), Fate::Stopped(_)) => {}
                _ => assert_eq!(found, expected, "{text:?} at {start:?}"),
            }
        };
        let stopped = Fate::Stopped(0);
        check(Text, "12", Fate::Whole);
        check(Text, "<think>", stopped.clone());
        check(Thought, "any < </thin text", Fate::Unfinished);
        check(Thought, "I add.\n</think>\n\n12", Fate::Whole);
        check(Thought, "I add.\n</think>\n\n1", Fate::Unfinished);
        check(Thought, "I add.\n</think>12", stopped.clone());
        check(Thought, "I add.\n</think>\n\nx", stopped.clone());
        check(Thought, "<</think></think>", stopped.clone());
        check(Open, "12", Fate::Whole);
        check(Open, "<think>\nI add.\n</think>\n\n12", Fate::Whole);
        check(Open, "<think></think>\n\n1", Fate::Unfinished);
        check(Open, "<thinx", stopped.clone());
        check(Open, " <think>", stopped.clone());
        check(Open, "</think>", stopped);
    }
}

#[test]
fn a_token_may_end_the_thought_and_begin_the_grammar() {
    let model = model_of(&[], &["k>1", "k>x", "k>\n", "k>\n\n12", ">\n<"]);
    let [with_digit, with_letter, with_blank, with_both] = [257, 258, 259, 260].map(TokenId);
    let begun = || {
        let mut constraint = constraint(&model, digits(), None, AnswerStart::Thought);
        assert_eq!(offer(&mut constraint, &plain("so</thin"), N_LOGITS), Fate::Unfinished);
        constraint
    };
    let found = allowed(&mut begun(), N_LOGITS);
    assert!([with_digit, with_blank, with_both].iter().all(|it| found.contains(it)));
    assert!(!found.contains(&with_letter));
    assert_eq!(offer(&mut begun(), &[with_digit, TokenId(b'2'.into())], N_LOGITS), Fate::Whole);
    assert_eq!(offer(&mut begun(), &[with_both], N_LOGITS), Fate::Whole);
    // The rest of the whitespace that the template writes.
    let mut constraint = begun();
    constraint.accept(with_blank);
    assert_eq!(forced(&mut constraint), plain("\n"));
    constraint.accept(TokenId(b'\n'.into()));
    assert!(allowed(&mut constraint, N_LOGITS).iter().all(|it| (48..58).contains(&it.0)));
}

#[test]
fn a_thought_that_is_long_enough_is_ended() {
    for model in models() {
        let closing = tokens(&model, "\n</think>\n\n");
        let after_thoughts = |form: AnswerForm, n_tokens: usize, start, opening: &str| {
            let mut constraint = constraint(&model, form, Some(n_tokens), start);
            let thought = [tokens(&model, opening), plain(&"x".repeat(n_tokens))].concat();
            assert_ne!(offer(&mut constraint, &thought, N_LOGITS), Fate::Stopped(0));
            assert_eq!(forced(&mut constraint), closing, "{n_tokens}");
            let found = offer(&mut constraint, &closing, N_LOGITS);
            (constraint, found)
        };
        for n_tokens in [0, 1, 7] {
            use AnswerStart::{Open, Thought};
            let (mut constraint, fate) = after_thoughts(digits(), n_tokens, Thought, "");
            assert_eq!(fate, Fate::Unfinished);
            assert_eq!(offer(&mut constraint, &plain("12"), N_LOGITS), Fate::Whole);
            let (mut constraint, fate) = after_thoughts(digits(), n_tokens, Open, "<think>");
            assert_eq!(fate, Fate::Unfinished);
            assert_eq!(offer(&mut constraint, &plain("12"), N_LOGITS), Fate::Whole);
            // Without a grammar any text may follow.
            let (mut constraint, fate) = after_thoughts(AnswerForm::Free, n_tokens, Thought, "");
            assert_eq!(fate, Fate::Whole);
            assert_eq!(offer(&mut constraint, &plain("any"), N_LOGITS), Fate::Whole);
        }
        // A thought that ends by itself is not ended again.
        let mut constraint = constraint(&model, digits(), Some(30), AnswerStart::Thought);
        let whole = tokens(&model, "short</think>\n\n12");
        assert_eq!(offer(&mut constraint, &whole, N_LOGITS), Fate::Whole);
    }
}

#[test]
fn any_blank_space_may_precede_a_thought() {
    let model = model_of(&[], &[]);
    let mut constraint = constraint(&model, AnswerForm::Free, Some(2), AnswerStart::Open);
    assert_eq!(offer(&mut constraint, &plain("\u{a0}<think>xx"), N_LOGITS), Fate::Whole);
    assert_eq!(forced(&mut constraint), plain("\n</think>\n\n"));
}

#[test]
fn an_answer_does_not_end_in_a_thought_if_a_grammar_follows() {
    let model = model_of(&[], &[]);
    let mut free = constraint(&model, AnswerForm::Free, Some(9), AnswerStart::Thought);
    assert_eq!(offer(&mut free, &plain("I"), N_LOGITS), Fate::Whole);
    let mut bound = constraint(&model, digits(), Some(9), AnswerStart::Thought);
    assert!(!bound.may_end());
    assert_eq!(offer(&mut bound, &plain("I"), N_LOGITS), Fate::Unfinished);
}

#[test]
fn the_end_of_a_thought_is_written_as_the_template_writes_it() {
    let model = model_of(&[], &["</think>"]);
    let marker = TokenId(257);
    let form = AnswerForm::JsonSchema(json!({"const": true}));
    let rules = AnswerRules { form, n_thought_tokens_max: Some(1), ..AnswerRules::default() };
    let after = |thought_end: &str| {
        let grammars = Grammars::new(model.clone(), None).with_thought_end(thought_end.to_owned());
        let mut constraint =
            grammars.constraint(&rules, &[], AnswerStart::Thought).unwrap().unwrap();
        constraint.accept(TokenId(b'x'.into()));
        let closing = forced(&mut constraint);
        closing.iter().for_each(|token| constraint.accept(*token));
        (closing, forced(&mut constraint))
    };
    let newline = TokenId(b'\n'.into());
    assert_eq!(after("</think>"), (vec![marker], plain("true")));
    assert_eq!(after("</think>\n"), (vec![marker, newline], plain("true")));
    assert_eq!(after("no marker").0, [newline, marker, newline, newline]);
}
