//! Hostile files: their JSON, the model, and added tokens.

use serde_json::{Map, Value, json};

use crate::cases::Expected::{Refused, Works};
use crate::cases::{Case, added, good};

pub(super) fn files() -> Vec<Case> {
    let text = good().to_string();
    let twice = text.replacen('{', r#"{"model": 5, "#, 1);
    let with = |key: &str, value: &str| text.replacen('{', &format!("{{\"{key}\": {value}, "), 1);
    let deep = |n: usize| with("extra", &("[".repeat(n) + &"]".repeat(n)));
    vec![
        Case::raw("empty", Refused("EOF"), ""),
        Case::raw("half", Refused("EOF"), &text[..text.len() / 2]),
        Case::raw("list", Refused("expected struct"), "[]"),
        Case::raw("null", Refused("expected struct"), "null"),
        Case::raw(
            "not-utf8",
            Refused("not a tokenizer"),
            text.replace("hell", "\u{1}").into_bytes(),
        ),
        Case::raw(
            "latin1",
            Refused("unicode"),
            [text.as_bytes(), b"\"\xff"]
                .concat()
                .into_iter()
                .map(|byte| if byte == b'h' { 0xff } else { byte })
                .collect::<Vec<u8>>(),
        ),
        Case::raw("trailing", Refused("trailing"), format!("{text} x")),
        Case::raw("model-twice", Refused("not a tokenizer"), twice),
        Case::raw("decoder-twice", Refused("duplicate field"), with("decoder", "null")),
        Case::raw("version-2", Refused("version `2.0`"), text.replace("\"1.0\"", "\"2.0\"")),
        Case::raw(
            "version-lines",
            Refused("version"),
            text.replace("\"1.0\"", "\"2\\n\\u001b[31m\""),
        ),
        Case::raw("version-long", Refused("version"), text.replace("1.0", &"9".repeat(1 << 20))),
        Case::raw("deep-unknown", Works, deep(100)),
        Case::raw("very-deep-unknown", Works, deep(1_000_000)),
        Case::raw("many-unknown", Works, with("extra", &format!("[{}0]", "0,".repeat(8 << 20)))),
        Case::raw(
            "deep-normalizer",
            Refused("`normalizer`"),
            text.replacen(
                "\"normalizer\":null",
                &format!("\"normalizer\":{}{}", "[".repeat(1000), "]".repeat(1000)),
                1,
            ),
        ),
        Case::raw("too-long", Refused("more than the limit"), vec![b' '; (64 << 20) + 1]),
        Case::raw("all-spaces", Refused("EOF"), vec![b' '; 64 << 20]),
        Case::part(
            "truncation",
            Works,
            "truncation",
            json!({"direction": "Right",
            "max_length": 1, "strategy": "LongestFirst", "stride": 5}),
        ),
        Case::part(
            "padding",
            Works,
            "padding",
            json!({"strategy": {"Fixed": 1_000_000_000},
            "direction": "Left", "pad_to_multiple_of": 0, "pad_id": 0, "pad_type_id": 0,
            "pad_token": "x"}),
        ),
        Case::part("padding-nonsense", Works, "padding", json!("x")),
    ]
}

pub(super) fn models() -> Vec<Case> {
    let big: Map<String, Value> = (0..600_000).map(|id| (format!("t{id}"), json!(id))).collect();
    let same: Map<String, Value> =
        [("a", 0), ("b", 0)].into_iter().map(|(a, b)| (a.into(), json!(b))).collect();
    let twice = |what: &str, with: &str| good().to_string().replacen(what, with, 1);
    let many_merges: Vec<Value> = vec![json!("h e"); 1_100_000];
    let one = |text: String, id: i64| json!({text: id});
    vec![
        Case::model("dropout", Works, "dropout", json!(0.5)),
        Case::model("dropout-1", Works, "dropout", json!(1.0)),
        Case::model("dropout-nonsense", Works, "dropout", json!("x")),
        Case::model("dropout-negative", Works, "dropout", json!(-3)),
        Case::model(
            "wordpiece",
            Refused("`WordPiece` is not supported"),
            "type",
            json!("WordPiece"),
        ),
        Case::model("type-long", Refused("is not supported"), "type", json!("\n".repeat(99_999))),
        Case::part(
            "unigram",
            Refused("vocabulary of a BPE"),
            "model",
            json!({"type": "Unigram",
            "unk_id": 99, "vocab": [["a", -1.0]], "byte_fallback": false, "alpha": 0.1,
            "nbest_size": 64}),
        ),
        Case::part("no-model", Refused("missing field"), "model", json!({})),
        Case::part("model-null", Refused("not a tokenizer"), "model", json!(null)),
        Case::model("no-vocab", Refused("without tokens"), "vocab", json!({})),
        Case::part(
            "nothing",
            Refused("without tokens"),
            "model",
            json!({"vocab": {}, "merges": []}),
        ),
        Case::model("same-id", Refused("two tokens have id 0"), "vocab", Value::Object(same)),
        Case::raw(
            "same-text",
            Refused("one text has ids"),
            twice("\"vocab\":{", "\"vocab\":{\"he\":9999,"),
        ),
        Case::raw("negative-id", Refused("integer `-1`"), twice("\"he\":256", "\"he\":-1")),
        Case::raw("float-id", Refused("floating point"), twice("\"he\":256", "\"he\":256.5")),
        Case::raw("text-id", Refused("string"), twice("\"he\":256", "\"he\":\"256\"")),
        Case::raw("huge-id", Refused("4194303 for"), twice("\"he\":256", "\"he\":4294967295")),
        Case::raw("huger-id", Refused("not a tokenizer"), twice("\"he\":256", "\"he\":4294967296")),
        Case::raw("hugest-id", Refused("not a tokenizer"), twice("\"he\":256", "\"he\":1e400")),
        Case::model(
            "long-token",
            Refused("the limits are 4096"),
            "vocab",
            one("x".repeat(5000), 0),
        ),
        Case::model(
            "longest-token",
            Refused("the limits are 4096"),
            "vocab",
            one("x".repeat(30 << 20), 0),
        ),
        Case::model("many-tokens", Refused("more than 524288"), "vocab", Value::Object(big)),
        Case::model("merge-unknown", Refused("out of vocabulary"), "merges", json!(["h x"])),
        Case::model("merge-result-unknown", Refused("out of vocabulary"), "merges", json!(["a b"])),
        Case::model(
            "merge-too-long",
            Refused("merge 1 makes"),
            "merges",
            json!([["hell", "Ġwor"]]),
        ),
        Case::model("merge-of-one", Refused("must have two tokens"), "merges", json!(["he"])),
        Case::model("merge-of-three", Refused("must have two tokens"), "merges", json!(["h e l"])),
        Case::model(
            "merge-list-of-three",
            Refused("must have two tokens"),
            "merges",
            json!([["h", "e", "l"]]),
        ),
        Case::model("merge-number", Refused("a merge"), "merges", json!([5])),
        Case::model("merge-empty", Refused("must have two tokens"), "merges", json!([[]])),
        Case::model("many-merges", Refused("more than 1048576"), "merges", json!(many_merges)),
        Case::model("merges-null", Refused("a list of merges"), "merges", json!(null)),
        Case::model("unk-unknown", Refused("`unk_token`"), "unk_token", json!("\u{7}<unk>")),
        Case::model(
            "prefix",
            Refused("prefix or suffix"),
            "continuing_subword_prefix",
            json!("##"),
        ),
        Case::model("suffix", Refused("prefix or suffix"), "end_of_word_suffix", json!("</w>")),
        Case::model("no-prefix", Works, "continuing_subword_prefix", json!("")),
        Case::model("fallback", Refused("`byte_fallback`"), "byte_fallback", json!(true)),
        Case::model("fallback-text", Refused("boolean"), "byte_fallback", json!("yes")),
    ]
}

pub(super) fn added_tokens() -> Vec<Case> {
    let tokens = |name: &str, expected, list: Vec<Value>| {
        Case::part(name, expected, "added_tokens", json!(list))
    };
    let many = (262..70_000).map(|id| added(id, &format!("<{id}>"))).collect();
    let long = (262..1262).map(|id| added(id, &format!("{id}{}", "x".repeat(4000)))).collect();
    let normalized = |id: i64, content: &str| {
        let mut token = added(id, content);
        token["normalized"] = json!(true);
        token
    };
    let strips = |content: &str| {
        let mut token = added(262, content);
        (token["lstrip"], token["rstrip"], token["single_word"]) =
            (json!(true), json!(true), json!(true));
        token
    };
    let listed = |body: &str| format!(r#"{{"added_tokens_decoder": {body}}}"#);
    vec![
        tokens(
            "added-same-id",
            Refused("have the same id 262"),
            vec![added(262, "x1"), added(262, "x2")],
        ),
        tokens(
            "added-same-text",
            Refused("the same text"),
            vec![added(262, "x1"), added(263, "x1")],
        ),
        tokens("added-twice", Works, vec![added(262, "x1"), added(262, "x1")]),
        tokens("added-unordered", Works, vec![added(263, "x1"), added(262, "x2")]),
        tokens("added-taken-id", Refused("the vocabulary has another"), vec![added(5, "x1")]),
        tokens("added-other-id", Refused("the vocabulary has another"), vec![added(262, "hell")]),
        tokens("added-gap", Refused("should have id 300"), vec![added(300, "x1")]),
        tokens("added-negative", Refused("integer `-1`"), vec![added(-1, "x1")]),
        tokens("added-huge", Refused("4194303 for"), vec![added(4_294_967_295, "x1")]),
        tokens("added-huger", Refused("not a tokenizer"), vec![added(1 << 40, "x1")]),
        tokens("added-empty", Refused("has no text"), vec![added(262, "")]),
        tokens("added-long", Refused("the limits are 4096"), vec![added(262, &"x".repeat(5000))]),
        tokens(
            "added-giant",
            Refused("the limits are 4096"),
            vec![added(262, &"x\n".repeat(10 << 20))],
        ),
        tokens("added-many", Refused("more than 65536"), many),
        tokens("added-many-bytes", Refused("1048576 bytes"), long),
        tokens("added-strips", Works, vec![strips("<x>"), added(97, "a")]),
        tokens(
            "added-every-letter",
            Works,
            vec![added(97, "a"), normalized(262, "aa"), added(263, " a")],
        ),
        tokens(
            "added-lines",
            Refused("should have id 999"),
            vec![added(999, "\r\n\u{1b}[31mred\u{202e}")],
        ),
        tokens(
            "added-no-flags",
            Refused("missing field"),
            vec![json!({"id": 262, "content": "x"})],
        ),
        tokens("added-null", Refused("not a tokenizer"), vec![json!(null)]),
        Case::part(
            "added-object",
            Refused("a list of added tokens"),
            "added_tokens",
            json!({"a": 1}),
        ),
        Case::config(
            "listed-taken",
            Refused("should have id 5"),
            listed(r#"{"5": {"content": "zz"}}"#),
        ),
        Case::config(
            "listed-negative",
            Refused("added_tokens_decoder.-1"),
            listed(r#"{"-1": {"content": "zz"}}"#),
        ),
        Case::config(
            "listed-key-lines",
            Refused("added_tokens_decoder"),
            listed("{\"a\\n\\u001b\": {}}"),
        ),
        Case::config(
            "listed-key-long",
            Refused("added_tokens_decoder"),
            listed(&format!("{{\"{}\": {{}}}}", "9".repeat(1 << 20))),
        ),
        Case::config("listed-empty", Refused("has no text"), listed(r#"{"264": {"content": ""}}"#)),
        Case::config(
            "listed-long",
            Refused("the limits are 4096"),
            listed(&format!(r#"{{"264": {{"content": "{}"}}}}"#, "x".repeat(1 << 20))),
        ),
        Case::config(
            "listed-huge",
            Refused("4194303 for"),
            listed(r#"{"4294967295": {"content": "zz"}}"#),
        ),
        Case::config(
            "listed-same-text",
            Refused("the same text"),
            listed(r#"{"264": {"content": "zz"}, "265": {"content": "zz"}}"#),
        ),
    ]
}
