//! Compares prompts with those of transformers (`make.py`), and tests conversations that
//! transformers refuses or renders incompletely.

use std::path::Path;

use moeflux::provider::text::SpecialTokens;
use serde_json::json;

use super::*;
use crate::answer_reader::HiddenMarkers;
use crate::conversation::{Assistant, Call, Tool, ToolResult};
use crate::testing::byte_tokenizer;

const CASES: &str = include_str!("cases.json");
pub(super) const TEMPLATES: [(&str, &str); 10] = [
    ("qwen3", include_str!("../../../moeflux/src/text/template/cases/qwen3.jinja")),
    ("qwen3_5", include_str!("../../../moeflux/src/text/template/cases/qwen3_5.jinja")),
    ("deepseek_v3", include_str!("../../../moeflux/src/text/template/cases/deepseek_v3.jinja")),
    ("deepseek_v32", include_str!("../../../moeflux/src/text/template/own/deepseek_v32.jinja")),
    ("kimi_k2", include_str!("../../../moeflux/src/text/template/cases/kimi_k2.jinja")),
    ("glm4_moe", include_str!("../../../moeflux/src/text/template/cases/glm4_moe.jinja")),
    ("gpt_oss", include_str!("../../../moeflux/src/text/template/cases/gpt_oss.jinja")),
    ("minimax_m2", include_str!("../../../moeflux/src/text/template/cases/minimax_m2.jinja")),
    ("hunyuan_3", include_str!("../../../moeflux/src/text/template/cases/hunyuan_3.jinja")),
    ("llama3", include_str!("../../../moeflux/src/text/template/cases/llama3.jinja")),
];

fn format_of(source: &str) -> ChatFormat {
    let path = Path::new("t.jinja");
    ChatFormat::new(ChatTemplate::from_source(path, source, SpecialTokens::default()).unwrap())
}

pub(super) fn format_named(name: &str) -> ChatFormat {
    format_of(TEMPLATES.iter().find(|(other, _)| *other == name).unwrap().1)
}

pub(super) fn options() -> ChatOptions {
    let variables = [("bos_token".to_owned(), json!("<s>"))].into_iter().collect();
    ChatOptions { variables, now_seconds: Some(1_735_689_599), ..ChatOptions::default() }
}

fn text(json: &Json, key: &str) -> Option<String> {
    json[key].as_str().map(str::to_owned)
}

fn call(json: &Json) -> Call {
    let function = &json["function"];
    let (id, name) = (text(json, "id").unwrap(), text(function, "name").unwrap());
    Call::from_text(id, name, &function["arguments"].to_string())
}

fn turn(json: &Json) -> Turn {
    let content = text(json, "content").unwrap();
    match json["role"].as_str().unwrap() {
        "system" => Turn::System(content),
        "user" => Turn::User(content),
        "tool" => {
            let call_id = text(json, "tool_call_id").unwrap();
            Turn::Tool(ToolResult { call_id, name: None, text: content })
        }
        _ => {
            let calls = json["tool_calls"].as_array().into_iter().flatten().map(call).collect();
            let thoughts = text(json, "reasoning_content");
            Turn::Assistant(Assistant { thoughts, text: content, calls })
        }
    }
}

fn tool(json: &Json) -> Tool {
    let function = &json["function"];
    let name = text(function, "name").unwrap();
    Tool::function(name, text(function, "description"), Some(function["parameters"].clone()))
}

#[test]
fn prompts_are_those_of_transformers() {
    let cases: Json = serde_json::from_str(CASES).unwrap();
    let mut wrong = Vec::new();
    for case in cases.as_array().unwrap() {
        let given = &case["options"];
        let ending = match given {
            _ if given["continue_final_message"] != Json::Null => Ending::Continue,
            _ if given["add_generation_prompt"] == true => Ending::Answer,
            _ => Ending::Closed,
        };
        let conversation = Conversation {
            turns: case["messages"].as_array().unwrap().iter().map(turn).collect(),
            tools: given["tools"].as_array().into_iter().flatten().map(tool).collect(),
            ending,
        };
        let options = ChatOptions { thinking: given["enable_thinking"].as_bool(), ..options() };
        let format = format_named(case["template"].as_str().unwrap());
        let found = format.prompt(&conversation, &options);
        let is_right = match (text(case, "expected"), &found) {
            (Some(expected), Ok(found)) => found.text == expected,
            (expected, found) => expected.is_none() && found.is_err(),
        };
        if !is_right {
            wrong.push(format!("{case}\n  got {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn conversation_of(turns: Vec<Turn>) -> Conversation {
    Conversation { turns, ..Conversation::default() }
}

fn user(text: &str) -> Turn {
    Turn::User(text.to_owned())
}

fn system(text: &str) -> Turn {
    Turn::System(text.to_owned())
}

fn assistant(thoughts: Option<&str>, text: &str) -> Turn {
    let thoughts = thoughts.map(str::to_owned);
    Turn::Assistant(Assistant { thoughts, text: text.to_owned(), calls: Vec::new() })
}

#[track_caller]
fn check(name: &str, conversation: &Conversation, expected: &str) {
    let found = format_named(name).prompt(conversation, &options()).unwrap();
    assert_eq!(found.text, expected, "{name}");
}

#[test]
fn system_turns_at_the_start_are_one() {
    let turns = conversation_of(vec![system("A"), system("B"), user("C")]);
    let expected = "<|im_start|>system\nA\n\nB<|im_end|>\n<|im_start|>user\nC<|im_end|>\n\
                    <|im_start|>assistant\n";
    check("qwen3", &turns, expected);
    check("qwen3_5", &turns, &format!("{expected}<think>\n"));
}

#[test]
fn a_late_system_turn_keeps_its_role_where_the_template_takes_it() {
    let turns = conversation_of(vec![user("A"), system("B"), user("C")]);
    let with = |role: &str| {
        format!(
            "<|im_start|>user\nA<|im_end|>\n<|im_start|>{role}\nB<|im_end|>\n\
             <|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n"
        )
    };
    check("qwen3", &turns, &with("system"));
    check("qwen3_5", &turns, &(with("user") + "<think>\n"));
    // This template moves it to the front.
    check("deepseek_v3", &turns, "<s>B<｜User｜>A<｜User｜>C<｜Assistant｜>");
    let deaf = format_of("{% for m in messages if m.role == 'user' %}{{ m.content }};{% endfor %}");
    assert_eq!(deaf.prompt(&turns, &options()).unwrap().text, "A;B;C;");
}

#[test]
fn templates_may_take_arguments_as_text() {
    let call = Call::from_text("c1".into(), "f".into(), r#"{"a": 1}"#);
    let called = Assistant { thoughts: None, text: String::new(), calls: vec![call] };
    let result = ToolResult { call_id: "c1".into(), name: None, text: "R".into() };
    let turns = conversation_of(vec![user("A"), Turn::Assistant(called), Turn::Tool(result)]);
    let source = "{% for m in messages %}{% if m.tool_calls %}\
                  {{ m.tool_calls[0].function.name + m.tool_calls[0].function.arguments }}\
                  {% else %}{{ m.name }}{{ m.content }};{% endif %}{% endfor %}";
    let found = format_of(source).prompt(&turns, &options()).unwrap();
    assert_eq!(found.text, "A;f{\"a\": 1}fR;");
    let malformed = Call::from_text("c1".into(), "f".into(), "{\"a\": ");
    let called = Assistant { thoughts: None, text: String::new(), calls: vec![malformed] };
    let turns = conversation_of(vec![user("A"), Turn::Assistant(called)]);
    for (name, _) in TEMPLATES {
        format_named(name).prompt(&turns, &options()).unwrap();
    }
}

/// Returns two turns of calls with ids made by a server.
fn called_twice() -> Conversation {
    let call = |id: &str| Call::from_text(id.into(), "f".into(), r#"{"a": [1, 2]}"#);
    let called = |id| Turn::Assistant(Assistant { calls: vec![call(id)], ..Assistant::default() });
    let result =
        |id: &str| Turn::Tool(ToolResult { call_id: id.into(), name: None, text: "R".into() });
    conversation_of(vec![
        user("A"),
        called("call_x"),
        result("call_x"),
        called("call_y"),
        result("call_y"),
    ])
}

#[test]
fn ids_tell_the_names_of_calls_where_nothing_else_does() {
    let found = format_named("kimi_k2").prompt(&called_twice(), &options()).unwrap().text;
    for id in ["functions.f:0", "functions.f:1"] {
        let call = format!("<|tool_call_begin|>{id}<|tool_call_argument_begin|>{{\"a\": [1, 2]}}");
        assert!(found.contains(&call) && found.contains(&format!("Return of {id}")), "{found}");
    }
    assert!(!found.contains("call_x"));
}

#[test]
fn absent_text_beside_calls_is_null_for_templates_that_test_for_it() {
    let found = format_named("deepseek_v3").prompt(&called_twice(), &options()).unwrap().text;
    let call = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": [1, 2]}\n```";
    assert!(found.contains(call), "{found}");
}

#[test]
fn a_prompt_determines_how_the_answer_starts() {
    use AnswerStart::{Open, Text, Thought};
    let start = |name: &str, turns: Vec<Turn>, (ending, thinking)| {
        let conversation = Conversation { ending, ..conversation_of(turns) };
        let options = ChatOptions { thinking, ..options() };
        format_named(name).prompt(&conversation, &options).unwrap().start
    };
    let new = |thinking| (Ending::Answer, thinking);
    assert_eq!(start("qwen3_5", vec![user("A")], new(None)), Thought);
    assert_eq!(start("qwen3_5", vec![user("A")], new(Some(false))), Open);
    assert_eq!(start("qwen3", vec![user("A <think>")], new(None)), Open);
    assert_eq!(start("kimi_k2", vec![user("A <think>")], new(None)), Text);
    let going_on = |thoughts, text| {
        start("qwen3", vec![user("A"), assistant(thoughts, text)], (Ending::Continue, None))
    };
    assert_eq!(going_on(None, "So"), Text);
    assert_eq!(going_on(None, ""), Open);
    assert_eq!(going_on(Some("I"), "So"), Text);
    assert_eq!(going_on(Some("I"), ""), Thought);
    assert_eq!(going_on(Some(""), ""), Open);
    let opened = vec![user("A"), assistant(None, "<think>I")];
    assert_eq!(start("glm4_moe", vec![user("A")], new(Some(false))), Open);
    let conversation = Conversation { ending: Ending::Continue, ..conversation_of(opened) };
    let found = format_of("{{ messages[1].content }}</think>");
    assert_eq!(found.prompt(&conversation, &options()).unwrap().start, Thought);
}

#[test]
fn conversations_that_cannot_be_rendered_are_refused_with_a_reason() {
    let refused = |name: &str, conversation: &Conversation, options: &ChatOptions| {
        format_named(name).prompt(conversation, options).unwrap_err().to_string()
    };
    let going_on = |turns| Conversation { ending: Ending::Continue, ..conversation_of(turns) };
    let problem = refused("qwen3", &going_on(vec![user("A")]), &options());
    assert_eq!(problem, "only a final assistant turn can be continued");
    let call = Call::from_text("c".into(), "f".into(), "{}");
    let called = Assistant { calls: vec![call], ..Assistant::default() };
    let problem = refused("qwen3", &going_on(vec![Turn::Assistant(called)]), &options());
    assert_eq!(problem, "an assistant turn with tool calls cannot be continued");
    let thought = going_on(vec![user("A"), assistant(Some("I"), "")]);
    let problem = refused("kimi_k2", &thought, &options());
    assert!(problem.starts_with("the chat template alters the last assistant turn"), "{problem}");
    assert!(
        refused("qwen3_5", &conversation_of(Vec::new()), &options())
            .contains("No messages provided.")
    );
    for name in OWN_VARIABLES {
        let mut options = options();
        options.variables.insert(name.to_owned(), json!([]));
        let problem = refused("qwen3", &conversation_of(vec![user("A")]), &options);
        assert!(problem.starts_with(&format!("the template's variable `{name}`")), "{problem}");
    }
}

#[test]
fn variables_and_options_reach_the_template() {
    let format = format_of("{{ enable_thinking }} {{ thinking }} {{ effort }} {{ bos_token }}");
    let mut options = ChatOptions { thinking: Some(false), ..options() };
    options.variables.insert("effort".into(), json!("low"));
    let found = format.prompt(&conversation_of(vec![user("A")]), &options).unwrap();
    assert_eq!(found.text, "False False low <s>");
    options.variables.insert("thinking".into(), json!(true));
    let found = format.prompt(&conversation_of(vec![user("A")]), &options).unwrap();
    assert_eq!(found.text, "False True low <s>");
}

#[test]
fn the_mark_in_a_users_text_does_no_harm() {
    let turns = vec![user(MARK), assistant(None, MARK)];
    let conversation = Conversation { ending: Ending::Continue, ..conversation_of(turns) };
    let found = format_named("kimi_k2").prompt(&conversation, &options()).unwrap();
    assert!(found.text.ends_with(&format!("assistant<|im_middle|>{MARK}")), "{}", found.text);
}

/// Rows of the demo model's embedding.
const DEMO_VOCAB: usize = 8_192;

#[test]
fn the_demo_model_has_a_format() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-demo/model");
    let model = ModelText::open(&folder, DEMO_VOCAB).unwrap();
    let format = ChatFormat::open(&model).unwrap().unwrap();
    let found = format.prompt(&conversation_of(vec![user("A")]), &ChatOptions::default()).unwrap();
    let message = Message::new("user", "A");
    assert_eq!(found.tokens(model.tokenizer()).unwrap(), model.chat_prompt(&[message]).unwrap());
    assert_eq!(found.start, AnswerStart::Open);
    assert_eq!(format.call_format().unwrap().title, "hermes");
    assert_eq!(
        HiddenMarkers::of(model.tokenizer(), ThoughtFormat::usual()),
        HiddenMarkers::default()
    );
}

#[test]
fn hidden_markers_are_recognised_by_their_tokens() {
    let glm = format_named("glm4_moe").call_format().unwrap();
    let mut shown: Vec<&str> = ThoughtFormat::usual().markers();
    shown.extend(glm.markers());
    let tokenizer = byte_tokenizer(&shown);
    let markers = HiddenMarkers::of(&tokenizer, ThoughtFormat::usual());
    let texts = [256, 257, 65].map(|id| markers.text(TokenId(id)));
    assert_eq!(texts, [Some("<think>"), Some("</think>"), None]);
    let with_calls = markers.with_calls(&tokenizer, glm);
    for (id, marker) in (256..).zip(shown) {
        assert_eq!(with_calls.text(TokenId(id)), Some(marker));
    }
    assert_eq!(with_calls.with_calls(&tokenizer, glm), with_calls);
    assert_eq!(markers.text(TokenId(258)), None);
    assert_eq!(HiddenMarkers::default().text(TokenId(0)), None);
}

#[test]
fn gpt_oss_begins_with_a_role_or_within_a_message() {
    let prompt = |turns: Vec<Turn>, ending| {
        let conversation = Conversation { ending, ..conversation_of(turns) };
        format_named("gpt_oss").prompt(&conversation, &options()).unwrap()
    };
    let new = prompt(vec![user("A")], Ending::Answer);
    assert!(new.text.ends_with("<|start|>user<|message|>A<|end|><|start|>assistant"));
    assert_eq!(new.start, AnswerStart::Open);
    let thought = vec![user("A"), assistant(Some("I th"), "")];
    let thought = prompt(thought, Ending::Continue);
    assert!(thought.text.ends_with("<|channel|>analysis<|message|>I th"), "{}", thought.text);
    assert_eq!(thought.start, AnswerStart::Thought);
    let text = prompt(vec![user("A"), assistant(Some("R"), "So")], Ending::Continue);
    let expected = "<|message|>R<|end|><|start|>assistant<|channel|>final<|message|>So";
    assert!(text.text.ends_with(expected), "{}", text.text);
    assert_eq!(text.start, AnswerStart::Text);
    let format = format_named("gpt_oss");
    assert_eq!(format.thought_format().title, "harmony");
    assert_eq!(format.thought_end().unwrap(), "<|end|><|start|>assistant");
    assert_eq!(format_named("hunyuan_3").thought_end().unwrap(), "</think:opensource>");
    assert_eq!(format_named("minimax_m2").thought_end().unwrap(), "\n</think>\n\n");
}

#[test]
fn prompts_of_gpt_oss_have_one_call_at_a_time() {
    let call = |id: &str, name: &str| Call::from_text(id.into(), name.into(), r#"{"a": 1}"#);
    let calls = vec![call("1", "f"), call("2", "g")];
    let called = Assistant { thoughts: Some("R".into()), text: "T".into(), calls };
    let result = |id: &str, text: &str| {
        Turn::Tool(ToolResult { call_id: id.into(), name: None, text: text.into() })
    };
    let turns = vec![user("A"), Turn::Assistant(called), result("2", "G"), result("1", "F")];
    let tools = vec![Tool::function("f".into(), None, None)];
    let conversation = Conversation { tools, ..conversation_of(turns) };
    let found = format_named("gpt_oss").prompt(&conversation, &options()).unwrap().text;
    let expected = "<|start|>user<|message|>A<|end|>\
        <|start|>assistant<|channel|>analysis<|message|>R\n\nT<|end|>\
        <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>\
        <|start|>functions.f to=assistant<|channel|>commentary<|message|>\"F\"<|end|>\
        <|start|>assistant to=functions.g<|channel|>commentary json<|message|>{\"a\": 1}<|call|>\
        <|start|>functions.g to=assistant<|channel|>commentary<|message|>\"G\"<|end|>\
        <|start|>assistant";
    assert!(found.ends_with(expected), "{found}");
    // The template needs a description.
    assert!(found.contains("// \ntype f = () => any;"), "{found}");
}

#[test]
fn prompts_of_llama_have_one_call_at_a_time() {
    let call = |id: &str, name: &str| Call::from_text(id.into(), name.into(), r#"{"a": 1}"#);
    let calls = vec![call("1", "f"), call("2", "g")];
    let called = Assistant { calls, ..Assistant::default() };
    let result = |id: &str, text: &str| {
        Turn::Tool(ToolResult { call_id: id.into(), name: None, text: text.into() })
    };
    let turns = vec![user("A"), Turn::Assistant(called), result("2", "G"), result("1", "F")];
    let found = format_named("llama3").prompt(&conversation_of(turns), &options()).unwrap();
    let assistant = "<|start_header_id|>assistant<|end_header_id|>\n\n";
    let result = "<|start_header_id|>ipython<|end_header_id|>\n\n";
    let turn = |name: &str, text: &str| {
        format!(
            "{assistant}{{\"name\": \"{name}\", \"parameters\": {{\"a\": 1}}}}<|eot_id|>\
             {result}\"{text}\"<|eot_id|>"
        )
    };
    let expected = format!("{}{}{assistant}", turn("f", "F"), turn("g", "G"));
    assert!(found.text.ends_with(&expected), "{}", found.text);
    assert_eq!(found.start, AnswerStart::Text);
}

#[test]
fn an_effort_reaches_the_template() {
    let mut options = options();
    options.variables.insert("reasoning_effort".into(), json!("high"));
    let conversation = conversation_of(vec![user("A")]);
    let found = format_named("gpt_oss").prompt(&conversation, &options).unwrap();
    assert!(found.text.contains("\n\nReasoning: high\n\n"), "{}", found.text);
    let found = format_named("hunyuan_3").prompt(&conversation, &options).unwrap();
    assert!(found.text.ends_with("<｜hy_Assistant:opensource｜><think:opensource>"));
    assert_eq!(found.start, AnswerStart::Thought);
}
