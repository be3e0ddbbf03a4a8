//! The examples of `moeflux-chat`, which show how a program asks.

use moeflux_testing::examples::printed;

#[test]
fn a_conversation_in_company_gets_the_answer_that_it_gets_alone() {
    let alone = printed("ask");
    assert!(alone.contains("trait"), "{alone}");
    let together = printed("two_conversations");
    let expected = format!("What is a trait object?\n{}\n\n", alone.trim_end());
    assert!(together.starts_with(&expected), "{together}");
    assert!(together[expected.len()..].starts_with("What does a slice hold?\n"), "{together}");
}

#[test]
fn an_answer_calls_the_tool_or_follows_the_schema() {
    let printed = printed("tools");
    let (call, form) = printed.split_once('\n').unwrap();
    let arguments = call.strip_prefix("look_up(").and_then(|it| it.strip_suffix(')'));
    let arguments: serde_json::Value = serde_json::from_str(arguments.unwrap()).unwrap();
    assert!(arguments["name"].is_string(), "{call}");
    let form: serde_json::Value = serde_json::from_str(form).unwrap();
    assert!(form["is_growable"].is_boolean(), "{form}");
}
