//! Answers in harmony (`cases.txt`, in the notation of `calls/cases/README.md`), including answers
//! that begin within a message.

use serde_json::Value as Json;

use crate::answer_reader::{AnswerReader, AnswerStart};
use crate::calls::format;
use crate::conversation::Tool;
use crate::piece::{AnswerPiece, AnswerStage};
use crate::thoughts::HARMONY;

const CASES: &str = include_str!("cases.txt");

fn tools() -> Vec<Tool> {
    let tools: Vec<Json> =
        serde_json::from_str(include_str!("../../calls/cases/tools.json")).unwrap();
    let tool = |it: &Json| {
        Tool::function(it["name"].as_str().unwrap().into(), None, Some(it["parameters"].clone()))
    };
    tools.iter().map(tool).collect()
}

fn reader(start: AnswerStart) -> AnswerReader {
    AnswerReader::new(start, &HARMONY).with_calls(&format::HARMONY, &tools())
}

fn read(mut reader: AnswerReader, parts: &[&str], is_cut: bool) -> Vec<AnswerPiece> {
    let mut pieces: Vec<AnswerPiece> = parts.iter().flat_map(|it| reader.push(it)).collect();
    pieces.extend(if is_cut { reader.finish_cut() } else { reader.finish() });
    pieces
}

/// Formats pieces in the notation of the cases.
fn formatted(pieces: Vec<AnswerPiece>) -> String {
    let mut lines: Vec<(&str, String)> = Vec::new();
    let mut say = |kind: &'static str, text: &str| match lines.last_mut() {
        Some((last, formatted)) if *last == kind && kind != "call" => formatted.push_str(text),
        _ => lines.push((kind, text.to_owned())),
    };
    let mut call = None;
    for piece in pieces {
        match piece {
            AnswerPiece::Thought(text) => say("thought", &text),
            AnswerPiece::Text(text) => say("text", &text),
            AnswerPiece::Call { name, .. } => call = Some((name, String::new())),
            AnswerPiece::Arguments(text) => call.as_mut().unwrap().1.push_str(&text),
            AnswerPiece::CallEnd => {
                let (name, arguments) = call.take().unwrap();
                let object: Result<serde_json::Map<String, Json>, _> =
                    serde_json::from_str(&arguments);
                assert!(object.is_ok(), "no object: {arguments}");
                say("call", &format!("{name} {arguments}"));
            }
            AnswerPiece::CallCut => {
                let (name, arguments) = call.take().unwrap();
                say("cut", &format!("{name} {}", Json::from(arguments)));
            }
        }
    }
    assert!(call.is_none(), "a call does not end");
    let line = |(kind, text): &(&str, String)| match *kind {
        "call" | "cut" => format!("{kind} {text}"),
        _ => format!("{kind} {}", Json::from(text.as_str())),
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Splits a text in all ways: whole, in two at each place, by characters.
fn ways(text: &str) -> Vec<Vec<&str>> {
    let cuts: Vec<usize> = (0..=text.len()).filter(|cut| text.is_char_boundary(*cut)).collect();
    let mut ways = vec![vec![text]];
    ways.extend(cuts.iter().map(|cut| vec![&text[..*cut], &text[*cut..]]));
    ways.push(cuts.windows(2).map(|it| &text[it[0]..it[1]]).collect());
    ways
}

#[track_caller]
fn check(start: AnswerStart, text: &str, expected: &str, is_cut: bool) {
    for parts in ways(text) {
        assert_eq!(formatted(read(reader(start), &parts, is_cut)), expected, "{parts:?}");
    }
}

#[test]
fn harmony_answers_match_their_table() {
    let cases: Vec<&str> = CASES.split("=== ").skip(1).collect();
    assert!(cases.len() > 30);
    for case in cases {
        let (title, case) = case.split_once('\n').unwrap();
        let (text, expected) = case.split_once("---\n").unwrap();
        let text = text.strip_suffix('\n').unwrap();
        check(AnswerStart::Open, text, expected.trim_end(), title.ends_with("[cut]"));
    }
}

#[test]
fn an_answer_may_begin_within_a_message() {
    let rest = "nk.<|end|><|start|>assistant<|channel|>final<|message|>So.";
    check(AnswerStart::Thought, rest, "thought \"nk.\"\ntext \"So.\"", false);
    check(AnswerStart::Text, "and so on.<|return|>", "text \"and so on.\"", false);
    let more = " on.<|end|><|start|>assistant to=functions.now<|channel|>commentary<|message|>{}";
    check(AnswerStart::Text, more, "text \" on.\"\ncall now {}", false);
}

#[test]
fn nothing_is_a_call_where_no_tool_is_offered_or_no_more_may_be_called() {
    let one = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>";
    let without = AnswerReader::new(AnswerStart::Open, &HARMONY);
    assert_eq!(formatted(read(without, &[one], false)), "text \"{}\"");
    let two = format!("{one}<|start|>assistant{one}");
    let one_call = reader(AnswerStart::Open).with_calls_max(1);
    assert_eq!(formatted(read(one_call, &[&two], false)), "call now {}\ntext \"{}\"");
    // A message that turned out not to be a call leaves room for one.
    let none = format!("<|channel|>commentary to=functions.now<|message|>No<|end|>{one}");
    let one_call = reader(AnswerStart::Open).with_calls_max(1);
    assert_eq!(formatted(read(one_call, &[&none], false)), "text \"No\"\ncall now {}");
}

#[test]
fn text_and_arguments_come_before_their_end() {
    let mut reader = reader(AnswerStart::Open);
    assert_eq!(reader.push("<|channel|>final<|message|>"), []);
    assert_eq!(reader.push("So <"), [AnswerPiece::Text("So ".into())]);
    assert_eq!(reader.push("3"), [AnswerPiece::Text("<3".into())]);
    let head = "<|end|><|start|>assistant<|channel|>commentary to=functions.write<|message|>";
    assert_eq!(reader.push(head), []);
    let begun = [
        AnswerPiece::Call { name: "write".into(), id: None },
        AnswerPiece::Arguments("{\"path\": \"a".into()),
    ];
    assert_eq!(reader.push("{\"path\": \"a"), begun);
    assert_eq!(reader.push("b"), [AnswerPiece::Arguments("b".into())]);
}

#[test]
fn the_stage_follows_the_text() {
    let mut reader = reader(AnswerStart::Open);
    let mut stage_after = |text: &str| {
        reader.push(text);
        reader.stage()
    };
    for (text, stage) in [
        ("", AnswerStage::Start),
        ("<|channel|>", AnswerStage::Header),
        ("analysis", AnswerStage::Header),
        ("<|message|>", AnswerStage::Thought),
        ("Hm", AnswerStage::Thought),
        ("<|end|>", AnswerStage::Header),
        ("<|start|>assistant<|channel|>commentary", AnswerStage::Header),
        ("<|message|>", AnswerStage::Text),
        ("So", AnswerStage::Text),
        ("<|end|><|start|>assistant<|channel|>commentary to=functions.now", AnswerStage::Header),
        ("<|message|>", AnswerStage::Call),
        ("{}", AnswerStage::Call),
        ("<|end|><|start|>user<|message|>Hi", AnswerStage::Header),
    ] {
        assert_eq!(stage_after(text), stage, "{text}");
    }
}

#[test]
fn a_long_header_is_none() {
    let name = "x".repeat(2_000);
    let text = format!("<|channel|>final<|message|>a<|start|>{name}<|message|>b");
    check(AnswerStart::Open, &text, &format!("text \"a{name}b\""), false);
}
