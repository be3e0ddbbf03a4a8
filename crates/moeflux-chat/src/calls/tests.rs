//! Texts as models write them (`cases/README.md`), and calls as templates write them.

use serde_json::Value as Json;

use crate::answer_reader::{AnswerReader, AnswerStart};
use crate::calls::format::CallFormat;
use crate::conversation::Tool;
use crate::piece::AnswerPiece;
use crate::thoughts::THINK;

const CASES: [(&str, &str); 10] = [
    ("hermes", include_str!("cases/hermes.txt")),
    ("qwen_xml", include_str!("cases/qwen_xml.txt")),
    ("deepseek_v3", include_str!("cases/deepseek_v3.txt")),
    ("deepseek_v3_1", include_str!("cases/deepseek_v3_1.txt")),
    ("deepseek_v3_2", include_str!("cases/deepseek_v3_2.txt")),
    ("kimi_k2", include_str!("cases/kimi_k2.txt")),
    ("glm_4_5", include_str!("cases/glm_4_5.txt")),
    ("minimax_m2", include_str!("cases/minimax_m2.txt")),
    ("hunyuan_3", include_str!("cases/hunyuan_3.txt")),
    ("llama_3", include_str!("cases/llama_3.txt")),
];

fn tools() -> Vec<Tool> {
    let tools: Vec<Json> = serde_json::from_str(include_str!("cases/tools.json")).unwrap();
    let tool = |it: &Json| {
        Tool::function(it["name"].as_str().unwrap().into(), None, Some(it["parameters"].clone()))
    };
    tools.iter().map(tool).collect()
}

fn format(title: &str) -> &'static CallFormat {
    CallFormat::all().find(|it| it.title == title).unwrap()
}

/// Returns the result of reading in the notation of the cases.
fn read(format: &'static CallFormat, parts: &[&str], is_cut: bool) -> Vec<String> {
    let mut reader = AnswerReader::new(AnswerStart::Text, &THINK).with_calls(format, &tools());
    let mut pieces: Vec<AnswerPiece> = parts.iter().flat_map(|it| reader.push(it)).collect();
    pieces.extend(if is_cut { reader.finish_cut() } else { reader.finish() });
    let mut found = Vec::new();
    let (mut text, mut call, mut arguments) = (String::new(), None, String::new());
    let quoted = |text: &str| Json::from(text).to_string();
    for piece in pieces {
        match piece {
            AnswerPiece::Text(it) => text.push_str(&it),
            AnswerPiece::Call { name, id } => {
                if !text.is_empty() {
                    found.push(format!("text {}", quoted(&std::mem::take(&mut text))));
                }
                assert!(call.is_none(), "a call in a call");
                call = Some((name, id.map(|it| it + " ").unwrap_or_default()));
            }
            AnswerPiece::Arguments(it) => {
                assert!(call.is_some(), "arguments without a call");
                arguments.push_str(&it);
            }
            AnswerPiece::CallEnd => {
                let object: Result<serde_json::Map<String, Json>, _> =
                    serde_json::from_str(&arguments);
                assert!(object.is_ok(), "no object: {arguments}");
                let (name, id) = call.take().unwrap();
                found.push(format!("call {name} {id}{}", std::mem::take(&mut arguments)));
            }
            AnswerPiece::CallCut => {
                let (name, _) = call.take().unwrap();
                found.push(format!("cut {name} {}", quoted(&std::mem::take(&mut arguments))));
            }
            AnswerPiece::Thought(it) => panic!("a thought: {it}"),
        }
    }
    assert!(call.is_none(), "a call does not end");
    if !text.is_empty() {
        found.push(format!("text {}", quoted(&text)));
    }
    found
}

/// Returns the first split of a text that does not give the expected result: whole, in two at each
/// place, or by characters.
fn wrong(format: &'static CallFormat, title: &str, text: &str, expected: &str) -> Option<String> {
    let is_cut = title.ends_with("[cut]");
    let cuts: Vec<usize> = (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)).collect();
    let halves = cuts.iter().map(|cut| vec![&text[..*cut], &text[*cut..]]);
    let characters = cuts.windows(2).map(|it| &text[it[0]..it[1]]).collect();
    let mut ways = std::iter::once(vec![text]).chain(halves).chain([characters]);
    ways.find_map(|parts| {
        let found = read(format, &parts, is_cut).join("\n");
        let problem = || format!("{}, {title}: {parts:?}\n{found}\n", format.title);
        (found != expected).then(problem)
    })
}

#[test]
fn texts_of_all_formats_match_their_tables() {
    let mut all = String::new();
    for (title, cases) in CASES {
        let cases: Vec<&str> = cases.split("=== ").skip(1).collect();
        assert!(cases.len() > 5, "{title} has few cases");
        for case in cases {
            let (name, case) = case.split_once('\n').unwrap();
            let (text, expected) = case.split_once("---\n").unwrap();
            let text = text.strip_suffix('\n').unwrap_or(text);
            all.extend(wrong(format(title), name, text, expected.trim_end()));
        }
    }
    assert!(all.is_empty(), "{all}");
}

#[test]
fn formats_that_differ_only_in_writing_are_read_alike() {
    for (title, other) in [("qwen_xml", "qwen_xml_python"), ("glm_4_5", "glm_4_7")] {
        let (_, cases) = CASES.iter().find(|(it, _)| *it == title).unwrap();
        for case in cases.split("=== ").skip(1) {
            let (_, case) = case.split_once('\n').unwrap();
            let (text, _) = case.split_once("---\n").unwrap();
            assert_eq!(read(format(other), &[text], false), read(format(title), &[text], false));
        }
    }
}

/// A model may know tools and another format than its template's.
#[test]
fn an_answer_of_one_json_object_is_a_call_in_every_format() {
    let object = r#"{"name": "weather", "arguments": {"city": "Bern", "days": 3}}"#;
    let call = r#"call weather {"city": "Bern", "days": 3}"#;
    let fenced = |text: &str| format!("```json\n{text}\n```");
    let as_text = |text: &str| format!("text {}", Json::from(text));
    for format in CallFormat::all().filter(|it| it.title != "harmony") {
        for (title, text) in [
            ("bare", object.to_owned()),
            ("fenced", fenced(object)),
            ("blank", format!("\n {}\n", fenced(object))),
            ("no language", format!("```\n{object}\n```")),
            ("no end of the fence", format!("```json\n{object}")),
            (
                "another order",
                r#"{"arguments":{"city": "Bern", "days": 3},"name":"weather"}"#.into(),
            ),
        ] {
            assert_eq!(wrong(format, title, &text, call), None);
        }
        for (title, text) in [
            ("another tool", fenced(&object.replace("weather", "whether"))),
            ("other arguments", fenced(&object.replace("city", "town"))),
            ("another kind", fenced(&object.replace("\"Bern\"", "7"))),
            ("text before", format!("Look: {}", fenced(object))),
            ("text after", format!("{} and so on", fenced(object))),
            ("another language", fenced(object).replace("json", "rust")),
            ("another object", fenced(r#"{"city": "Bern"}"#)),
            ("half [cut]", fenced(&object[..40])),
            ("whole [cut]", fenced(object)),
        ] {
            assert_eq!(wrong(format, title, &text, &as_text(&text)), None);
        }
    }
}

#[test]
fn no_more_is_held_than_may_be_a_call() {
    let hermes = format("hermes");
    let mut reader = AnswerReader::new(AnswerStart::Text, &THINK).with_calls(hermes, &tools());
    assert_eq!(reader.push("```json\n{\"na"), []);
    assert_eq!(reader.push("ture\": 1"), [AnswerPiece::Text("```json\n{\"nature\": 1".into())]);
    let other_name = "{\"name\": \"weathering\"";
    let mut reader = AnswerReader::new(AnswerStart::Text, &THINK).with_calls(hermes, &tools());
    assert_eq!(reader.push(other_name), [AnswerPiece::Text(other_name.into())]);
    let mut reader = AnswerReader::new(AnswerStart::Text, &THINK).with_calls(hermes, &tools());
    let begun = format!("```json\n{{\"name\": \"{}", "x".repeat(256 << 10));
    assert_eq!(reader.push(&begun), [AnswerPiece::Text(begun.clone())]);
}

#[test]
fn calls_without_a_marker_arrive_piece_by_piece() {
    let reader = || {
        let reader = AnswerReader::new(AnswerStart::Text, &THINK);
        reader.with_calls(format("llama_3"), &tools())
    };
    let call = AnswerPiece::Call { name: "weather".into(), id: None };
    let arguments = |text: &str| AnswerPiece::Arguments(text.into());
    let mut calling = reader();
    assert_eq!(calling.push("\n{\"name\": \"weather\", \"param"), []);
    assert_eq!(calling.push("eters\": {\"ci"), [call, arguments("{\"ci")]);
    assert_eq!(
        calling.push("ty\": \"Bern\"}"),
        [arguments("ty\": \"Bern\"}"), AnswerPiece::CallEnd]
    );
    for answer in ["{\"city\"", "{\"name\": \"rain", "{\"name\": 7", "{ so", "I", "[{\"name"] {
        assert_eq!(reader().push(answer), [AnswerPiece::Text(answer.into())]);
    }
    // An answer in a form that is JSON may still be a call.
    let mut with_form = reader().with_json_text();
    assert_eq!(with_form.push("{\"name\": \"rain").len(), 1);
    let mut with_form = reader().with_json_text();
    assert_eq!(with_form.push("{\"name\": \"weather\", \"parameters\": {").len(), 2);
    let mut without = reader().with_calls_max(0);
    let text = "{\"name\": \"weather\", \"parameters\": {}}";
    assert_eq!([without.push(text), without.finish()].concat(), [AnswerPiece::Text(text.into())]);
}

#[test]
fn calls_with_long_members_after_the_arguments_are_text() {
    let hermes = format("hermes");
    let call = |note: &str| {
        format!(
            "<tool_call>{{\"name\":\"now\",\"arguments\":{{}},\"note\":\"{note}\"}}</tool_call>"
        )
    };
    let short = call(&"x".repeat(900));
    assert_eq!(wrong(hermes, "short", &short, "call now {}"), None);
    let note = "x".repeat(1100);
    let rest = format!(",\"note\":\"{note}\"}}</tool_call>");
    let expected = format!("call now {{}}\ntext {}", Json::from(rest));
    assert_eq!(wrong(hermes, "long", &call(&note), &expected), None);
}

#[test]
fn deep_values_between_tags_are_strings() {
    let read_in = |n_levels: usize| {
        let value = "[".repeat(n_levels) + &"]".repeat(n_levels);
        let parameter = format!("<parameter=anything>\n{value}\n</parameter>");
        let call = format!("<tool_call>\n<function=set>\n{parameter}\n</function>\n</tool_call>");
        (read(format("qwen_xml"), &[&call], false).join("\n"), value)
    };
    let (found, value) = read_in(100);
    assert_eq!(found, format!("call set {{\"anything\": {value}}}"));
    let (found, value) = read_in(127);
    assert_eq!(found, format!("call set {{\"anything\": \"{value}\"}}"));
}
