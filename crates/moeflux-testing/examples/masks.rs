//! Measures the cost of grammars: the tables of a large vocabulary, a constraint, and the mask of
//! each token.
//!
//!     cargo run --release -p moeflux-testing --example masks [-- FOLDER VOCAB]
//!
//! FOLDER is a model's folder, with VOCAB logits per token. Without it, a vocabulary of 248,320
//! tokens is synthesised: syllables joined to words, with and without a leading space, numbers and
//! punctuation.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use moeflux::provider::text::{byte_tokenizer_config_json, byte_tokenizer_json};
use moeflux::sample::LogitMask;
use moeflux::{ModelText, TokenId};
use moeflux_chat::{
    AnswerForm, AnswerRules, AnswerStart, CallFormat, Constraint, Grammars, Tool, ToolChoice,
};
use serde_json::{Map, Value as Json, json};

const VOCAB: usize = 248_320;
const END: &str = "<|im_end|>";
/// The number of times an answer is written, for the median.
const N_TIMES: usize = 20;

#[expect(clippy::print_stdout, clippy::disallowed_methods, reason = "it measures and prints")]
fn main() {
    let mut given = std::env::args().skip(1);
    let folder = given.next().map(PathBuf::from);
    let vocab = given.next().map_or(VOCAB, |it| it.parse().expect("a number of logits"));
    let made_up = folder.is_none().then(make_up);
    let folder = folder.or_else(|| made_up.clone()).expect("one of the two");
    let text = Arc::new(ModelText::open(&folder, vocab).expect("a model's folder"));
    if let Some(folder) = made_up {
        std::fs::remove_dir_all(folder).expect("a folder of ours");
    }
    let hermes = CallFormat::all().find(|it| it.title == "hermes");
    let xml = CallFormat::all().find(|it| it.title == "qwen_xml");
    let grammars = Grammars::new(text.clone(), hermes);
    let began = Instant::now();
    grammars.prepare().expect("a sound vocabulary");
    println!("tables of {} tokens: {}", text.tokenizer().vocab_size(), shown(began.elapsed()));
    let tagged = Grammars::new(text.clone(), xml);
    tagged.prepare().expect("a sound vocabulary");

    println!(
        "{:24} {:>9} {:>7} {:>7} {:>9} {:>9} {:>9}",
        "answer", "made in", "tokens", "forced", "median", "99 %", "most"
    );
    for (name, schema, answer) in forms() {
        let form = AnswerForm::JsonSchema(schema);
        let rules = AnswerRules { form, ..AnswerRules::default() };
        measure(name, (&grammars, &text), (&rules, &[]), &answer);
    }
    let tools = tools();
    for choice in [ToolChoice::Required, ToolChoice::Auto] {
        let name = if choice == ToolChoice::Auto { "auto" } else { "required" };
        let rules = AnswerRules { tool_choice: choice, ..AnswerRules::default() };
        let call = "<tool_call>\n{\"name\": \"tool_7\", \"arguments\": ARGUMENTS}\n</tool_call>";
        let call = call.replace("ARGUMENTS", &arguments().to_string());
        measure(&format!("20 tools, JSON, {name}"), (&grammars, &text), (&rules, &tools), &call);
        let call = "<tool_call>\n<function=tool_7>\nARGUMENTS</function>\n</tool_call>";
        let call = call.replace("ARGUMENTS", &tags());
        measure(&format!("20 tools, tags, {name}"), (&tagged, &text), (&rules, &tools), &call);
    }
    println!("\nschemas that are made to take long");
    measure_hostile(&grammars, vocab);
}

/// Prints the time for schemas that are designed to be slow.
#[expect(clippy::print_stdout, clippy::disallowed_methods, reason = "it measures and prints")]
fn measure_hostile(grammars: &Grammars, n_logits: usize) {
    for (name, schema) in hostile() {
        let form = AnswerForm::JsonSchema(schema);
        let rules = AnswerRules { form, ..AnswerRules::default() };
        let began = Instant::now();
        let constraint = grammars.constraint(&rules, &[], AnswerStart::Text);
        let made = began.elapsed();
        let outcome = match constraint {
            Err(refusal) => refusal.problem,
            Ok(None) => String::new(),
            Ok(Some(mut constraint)) => {
                let began = Instant::now();
                constraint.apply(&mut vec![0.0; n_logits]);
                let problem = constraint.failure().unwrap_or("held").to_owned();
                format!("{} for the first mask: {problem}", shown(began.elapsed()))
            }
        };
        println!("{name:24} {:>9}  {outcome}", shown(made));
    }
}

fn hostile() -> Vec<(&'static str, Json)> {
    let words = |n: usize| (0..n).map(|idx| json!(format!("word {}", idx * 7_919))).collect();
    let properties: Map<String, Json> =
        (0..400).map(|idx| (format!("property_{idx}"), json!({}))).collect();
    let names: Map<String, Json> = (0..16)
        .map(|idx| (format!("^([a-z]+[0-9]*)*{idx}x([a-z]*|[0-9]+)*$"), json!({"type": "null"})))
        .collect();
    let pattern = |idx: usize| json!({"pattern": format!("(a|b|ab)*[a-c]{{{}}}c", idx + 20)});
    let option = |idx: usize| json!({"properties": {"a": {"const": idx}, "b": {"minimum": idx}}});
    let options = || json!({"anyOf": (0..16).map(option).collect::<Vec<_>>()});
    vec![
        ("enum of 10,000", json!({"enum": Json::Array(words(10_000))})),
        ("400 properties", json!({"type": "object", "properties": properties})),
        ("16 patterns of names", json!({"type": "object", "patternProperties": names})),
        ("8 patterns at once", json!({"allOf": (0..8).map(pattern).collect::<Vec<_>>()})),
        ("one greedy pattern", json!({"type": "string", "pattern": "(x+x+)+y{1,900}[^y]{20}"})),
        ("2 x 16 options", json!({"allOf": [options(), options()]})),
        ("4 x 16 options", json!({"allOf": [options(), options(), options(), options()]})),
        ("a million items", json!({"type": "array", "minItems": 1_000_000})),
        ("a million letters", json!({"type": "string", "minLength": 1_000_000})),
        ("small multiples", json!({"type": "number", "multipleOf": 0.000_123_457})),
    ]
}

/// Writes an answer many times, and prints the time of its masks.
#[expect(clippy::print_stdout, clippy::disallowed_methods, reason = "it measures and prints")]
fn measure(
    name: &str,
    (grammars, text): (&Grammars, &ModelText),
    (rules, tools): (&AnswerRules, &[Tool]),
    answer: &str,
) {
    let make = || {
        let constraint = grammars.constraint(rules, tools, AnswerStart::Text);
        constraint.expect("sound rules").expect("rules that demand something")
    };
    let mut made: Vec<Duration> = Vec::new();
    let (mut masks, mut n_tokens, mut n_forced) = (Vec::new(), 0, 0);
    for _ in 0..N_TIMES {
        let began = Instant::now();
        let mut constraint = make();
        made.push(began.elapsed());
        (n_tokens, n_forced) = write(&mut constraint, text, answer, &mut masks);
    }
    made.sort_unstable();
    masks.sort_unstable();
    let at = |share: usize| masks[(masks.len() - 1) * share / 100];
    println!(
        "{name:24} {:>9} {n_tokens:7} {n_forced:7} {:>9} {:>9} {:>9}",
        shown(made[made.len() / 2]),
        shown(at(50)),
        shown(at(99)),
        shown(at(100))
    );
}

/// Writes an answer. Returns the number of its tokens and how many of them were forced, and appends
/// the mask times of the others.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn write(
    constraint: &mut Constraint,
    text: &ModelText,
    answer: &str,
    masks: &mut Vec<Duration>,
) -> (usize, usize) {
    let mut rest = answer;
    let (mut n_tokens, mut n_forced) = (0, 0);
    let mut logits = vec![0.0; text.vocab()];
    while !rest.is_empty() {
        logits.fill(0.0);
        let began = Instant::now();
        let mut forced = Vec::new();
        constraint.forced(&mut forced);
        if forced.is_empty() {
            constraint.apply(&mut logits);
            masks.push(began.elapsed());
            forced.push(next(text, rest, &logits));
        } else {
            n_forced += forced.len();
        }
        for token in forced {
            constraint.accept(token);
            let bytes = text.tokenizer().token_bytes(token);
            let written = std::str::from_utf8(&bytes).expect("whole characters");
            rest = rest.strip_prefix(written).expect("the answer itself");
            n_tokens += 1;
        }
        assert_eq!(constraint.failure(), None, "{rest}");
    }
    assert!(constraint.may_end(), "the whole answer");
    (n_tokens, n_forced)
}

/// Returns the longest allowed token among the text's own first token and its prefixes.
fn next(text: &ModelText, rest: &str, logits: &[f32]) -> TokenId {
    let is_allowed = |token: &TokenId| logits[token.0 as usize] > f32::NEG_INFINITY;
    let whole = text.tokenizer().encode_plain(rest).expect("a short text")[0];
    if is_allowed(&whole) {
        return whole;
    }
    let ends = (1..=rest.len().min(32)).rev().filter(|end| rest.is_char_boundary(*end));
    let mut tokens = ends.filter_map(|end| {
        let tokens = text.tokenizer().encode_plain(&rest[..end]).expect("a short text");
        (tokens.len() == 1).then(|| tokens[0])
    });
    tokens.find(is_allowed).expect("a token that goes on with the answer")
}

fn shown(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        micros if micros >= 1e4 => format!("{:.0} ms", micros / 1e3),
        micros if micros >= 1e3 => format!("{:.2} ms", micros / 1e3),
        micros => format!("{micros:.1} us"),
    }
}

const PROSE: &str = "The quick brown fox said: \"there is no such thing as a free lunch\", and \
    went on to count 1, 2, 3.\nThen it slept until the morning of the 3rd of May, near the river.";

fn forms() -> Vec<(&'static str, Json, String)> {
    let flat = json!({
        "type": "object", "additionalProperties": false, "required": ["title", "score", "tags"],
        "properties": {
            "title": {"type": "string"}, "score": {"type": "number", "minimum": 0, "maximum": 10},
            "tags": {"type": "array", "items": {"enum": ["new", "old", "odd"]}, "maxItems": 5},
        },
    });
    let wide: Map<String, Json> = (0..40)
        .map(|idx| (format!("property_{idx}"), json!({"type": ["string", "null"]})))
        .collect();
    let strings = json!({
        "type": "object", "additionalProperties": false,
        "required": ["day", "code", "mail", "text"],
        "properties": {
            "day": {"type": "string", "format": "date-time"},
            "code": {"type": "string", "pattern": "^[A-Z]{3}-\\d{4,8}$"},
            "mail": {"type": "string", "format": "email"},
            "text": {"type": "string", "minLength": 10, "maxLength": 500},
        },
    });
    let tree = json!({
        "$ref": "#/$defs/node",
        "$defs": {"node": {
            "type": "object", "additionalProperties": false, "required": ["name", "children"],
            "properties": {
                "name": {"type": "string"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
        }},
    });
    let leaf = |name: &str| json!({"name": name, "children": []});
    let of_wide = json!({"property_0": PROSE, "property_20": null, "property_39": "the end"});
    vec![
        ("any object", json!({"type": "object"}), json!({"a": [1, 2.5, null], "b": PROSE})),
        ("flat", flat, json!({"title": PROSE, "score": 7.25, "tags": ["new", "odd"]})),
        ("40 optional properties", json!({"type": "object", "properties": wide}), of_wide),
        (
            "strings with demands",
            strings,
            json!({"day": "2026-11-23T10:00:00Z", "code": "ABC-12345", "mail": "a.b@example.org",
                "text": PROSE}),
        ),
        ("tree", tree, json!({"name": PROSE, "children": [leaf("left"), leaf("right")]})),
    ]
    .into_iter()
    .map(|(name, schema, answer)| (name, schema, answer.to_string()))
    .collect()
}

fn tools() -> Vec<Tool> {
    let tool = |idx: usize| {
        let parameters = json!({
            "type": "object", "required": ["path", "n_lines"],
            "properties": {
                "path": {"type": "string"}, "n_lines": {"type": "integer"},
                "mode": {"enum": ["read", "write", "append"]}, "is_forced": {"type": "boolean"},
                "edits": {"type": "array", "items": {"type": "object", "required": ["from", "to"],
                    "properties": {"from": {"type": "string"}, "to": {"type": "string"}}}},
            },
        });
        Tool::function(format!("tool_{idx}"), None, Some(parameters))
    };
    (0..20).map(tool).collect()
}

fn arguments() -> Json {
    json!({"path": "/home/someone/a file.txt", "n_lines": 120, "mode": "append",
        "is_forced": false, "edits": [{"from": "one thing", "to": PROSE}]})
}

fn tags() -> String {
    let mut tags = String::new();
    for (name, value) in arguments().as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        writeln!(tags, "<parameter={name}>\n{value}\n</parameter>").expect("a text");
    }
    tags
}

/// Creates a folder with a synthetic tokenizer, the same each time.
fn make_up() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("moeflux-masks-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    let mut tokenizer = byte_tokenizer_json(257, &[END]);
    let vocab = tokenizer["model"]["vocab"].as_object_mut().expect("a table");
    let mut words = BTreeSet::new();
    let mut random = 1_u64;
    while words.len() < VOCAB - 257 {
        words.insert(word(&mut random));
    }
    let tokens = words.into_iter().zip(256..);
    vocab.extend(tokens.map(|(word, id)| (word, Json::from(id))));
    tokenizer["added_tokens"][0]["id"] = Json::from(VOCAB - 1);
    tokenizer["model"]["ignore_merges"] = Json::Bool(true);
    tokenizer["pre_tokenizer"]["use_regex"] = Json::Bool(true);
    let write = |name: &str, json: &Json| {
        std::fs::write(Path::new(&folder).join(name), json.to_string()).expect("a writable folder");
    };
    write("tokenizer.json", &tokenizer);
    write("tokenizer_config.json", &byte_tokenizer_config_json(Some(END)));
    folder
}

/// Returns a word of two to twelve letters, a number or some punctuation, in the byte-level
/// alphabet.
fn word(random: &mut u64) -> String {
    const SYLLABLES: [&str; 32] = [
        "the", "re", "in", "ing", "er", "on", "at", "es", "or", "te", "of", "ed", "is", "it", "al",
        "ar", "st", "to", "nt", "ng", "se", "ha", "as", "ou", "io", "le", "ve", "co", "me", "de",
        "hi", "ri",
    ];
    const SIGNS: [&str; 16] = [
        "\"", ":", ",", "{", "}", "[", "]", "(", ")", "=", "<", ">", "/", "\u{10a}", ".", "\u{120}",
    ];
    // SplitMix64.
    let mut next = |n: usize| {
        *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % n as u64).unwrap_or(0)
    };
    let mut word = if next(2) == 0 { "\u{120}".to_owned() } else { String::new() };
    match next(12) {
        0 => word.push_str(&next(10_000).to_string()),
        1 => (0..=next(4)).for_each(|_| word.push_str(SIGNS[next(16)])),
        _ => (0..2 + next(3)).for_each(|_| word.push_str(SYLLABLES[next(32)])),
    }
    if word.chars().count() < 2 { format!("{word}xx") } else { word }
}
