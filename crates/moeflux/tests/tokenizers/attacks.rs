//! Hostile files written against the limits themselves: just below them, several at once, and
//! through parts that another part's limit does not cover.

use serde_json::{Map, Value, json};

use crate::cases::Expected::{Refused, Works};
use crate::cases::{Case, added, good, nested, replace, split};

pub(crate) fn all() -> Vec<Case> {
    [patterns(), growth(), tokens(), json_text(), mixtures()].into_iter().flatten().collect()
}

fn list(key: &str, steps: Vec<Value>) -> Value {
    let mut json = Map::new();
    json.insert("type".into(), json!("Sequence"));
    json.insert(key.into(), json!(steps));
    Value::Object(json)
}

/// Expressions that either work on every text or are refused: `?` is for both.
fn patterns() -> Vec<Case> {
    const STEPS: &str = "takes too many steps";
    let any: [(&str, &str, &str); 42] = [
        ("x-far-alternatives", STEPS, "(?:a|b|c|d|e|f|g)*z|."),
        ("x-ahead-loop", STEPS, "(?:(?=(?:a|é)*z)a)*|."),
        ("x-ahead-ahead", "`pre_tokenizer`", "(?=(?=(?=(?:.|\\n)*Z).)*.)."),
        ("x-not-ahead", "", "(?!.*z)."),
        ("x-not-ahead-all", STEPS, "(?!(?:.|\\n)*z{3})."),
        ("x-behind-500", STEPS, "(?<=.{500})x|."),
        ("x-behind-1000", STEPS, "(?<=\\p{L}{1000})x|."),
        ("x-behind-ahead", "", "(?<=(?=a)a)a"),
        ("x-behind-chars", "", "(?<!語)語(?!語)"),
        ("x-atomic-loop", STEPS, "(?>(?>a+)+)+b"),
        ("x-possessive-loop", STEPS, "(?:a++)++b"),
        ("x-possessive-far", STEPS, "(?:a|\\s)*+z|."),
        ("x-lazy-loop", STEPS, "(?:a+?)+?z"),
        ("x-lazy-counted", STEPS, "a{1,1000}?b"),
        ("x-counted-1000", STEPS, "\\p{L}{1000}z|."),
        ("x-counted-two", STEPS, ".{0,1000}.{0,1000}z"),
        ("x-counted-three", STEPS, "a{0,99}a{0,99}a{0,99}z"),
        (
            "x-optional-chain",
            STEPS,
            "a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?a?aaaaaaaaaaaaaaaaaaaaz",
        ),
        ("x-star-chain", STEPS, ".*.*.*.*z"),
        ("x-word-chain", STEPS, r"(?:\w+\s?)*$z"),
        ("x-email", STEPS, r"^([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+$"),
        ("x-boundary-loop", "", r"(?:\b\w+\b\s*)+"),
        ("x-lines", "", r"(?m:^.*$)"),
        ("x-text-end", "", r"\A.|.\z"),
        ("x-text-end-2", "`pre_tokenizer`", r".\Z"),
        ("x-not-newline", "", r"\O"),
        ("x-hex", "", r"\h+|\H"),
        ("x-escapes", "", r"\x41|\u0042|\x{1F600}|\t|\e"),
        ("x-named", "", r"(?<word>\w+)"),
        ("x-named-back", "a reference", r"(?<word>\w+)\k<word>"),
        ("x-comment", "", r"(?#comment)a"),
        ("x-verbose", "", "(?x) a b # c"),
        ("x-case-class", "", "(?i)[K-Sß-ÿ]+"),
        ("x-intersection", "", r"[\w&&[^\d]&&[^é]]+"),
        ("x-difference", "", r"[\w--\d]+|[\w~~\d]"),
        ("x-class-never", "", r"[^\s\S]"),
        ("x-class-nested", "`pre_tokenizer`", "[[[[[[[[[[[[[[[[[[[[[[[["),
        ("x-surrogate", "`pre_tokenizer`", r"\x{D800}"),
        ("x-beyond", "`pre_tokenizer`", r"\x{110000}"),
        ("x-keep", "a reference", r"a\Kb"),
        ("x-last-end", "a reference", r"\Ga"),
        ("x-grapheme", "`pre_tokenizer`", r"\X"),
    ];
    let case = |(name, part, expression): (&str, &'static str, &str)| {
        let expected = if part.is_empty() { Works } else { Refused(part) };
        Case::split(name, expected, expression)
    };
    any.into_iter().map(case).collect()
}

fn growth() -> Vec<Case> {
    let normalizer = |name: &str, steps: Vec<Value>| {
        let expected = if name.contains("forms") { Refused("times as long") } else { Works };
        Case::part(name, expected, "normalizer", list("normalizers", steps))
    };
    let kind = |kind: &str| json!({"type": kind});
    let decoder =
        |name: &str, steps: Vec<Value>| Case::part(name, Works, "decoder", list("decoders", steps));
    let pre = |name: &str, steps: Vec<Value>| {
        Case::part(name, Works, "pre_tokenizer", list("pretokenizers", steps))
    };
    let behaviors = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];
    let by = |behavior: &str, invert: bool, expression: &str| {
        json!({"type": "Split", "pattern": {"Regex": expression}, "behavior": behavior,
            "invert": invert})
    };
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true});
    let meta = json!({"type": "Metaspace", "replacement": "\u{10ffff}"});
    let prepend = |text: &str| json!({"type": "Prepend", "prepend": text});
    let mut cases = vec![
        normalizer("g-16", vec![replace("a", &"b".repeat(16))]),
        normalizer("g-16-in-four", vec![replace("a", "aa"); 4]),
        normalizer("g-prepend-15", vec![prepend(&"x".repeat(15))]),
        normalizer(
            "g-forms-and-16",
            vec![kind("NFKD"), replace(" ", &"\u{fdfa}".repeat(5)), kind("NFKC")],
        ),
        normalizer(
            "g-forms-between",
            vec![
                kind("NFKD"),
                replace("e", "\u{fdfa}\u{fdfa}"),
                kind("NFKD"),
                kind("NFKC"),
                kind("Lowercase"),
            ],
        ),
        normalizer(
            "g-removes-all",
            vec![
                replace("a", ""),
                replace(" ", ""),
                replace("1", ""),
                replace("\n", ""),
                kind("NFC"),
                prepend("x"),
            ],
        ),
        normalizer(
            "g-prepend-removed",
            vec![prepend("xy"), replace("x", ""), replace("y", ""), kind("NFD")],
        ),
        normalizer(
            "g-marks",
            vec![prepend("\u{301}"), kind("NFC"), kind("NFD"), replace("\u{301}", "a")],
        ),
        normalizer("g-hangul", vec![kind("NFD"), replace("\u{1100}", "\u{1161}"), kind("NFC")]),
        normalizer("g-null", vec![replace("\0", "a"), prepend("\0"), kind("NFKC")]),
        normalizer("g-lower-dotted", vec![prepend("İ"), kind("Lowercase"), kind("NFC")]),
        normalizer("g-256-to-256", vec![replace(&"a".repeat(256), &"b".repeat(256))]),
        decoder("g-decode-16", vec![replace("e", &"x".repeat(16))]),
        decoder(
            "g-decode-strip",
            vec![json!({"type": "Strip", "content": "h", "start": 4_000_000_000_u64, "stop": 0})],
        ),
        decoder(
            "g-decode-empty",
            vec![replace("e", ""), json!({"type": "Fuse"}), json!({"type": "ByteFallback"})],
        ),
        decoder(
            "g-decode-meta",
            vec![json!({"type": "Metaspace", "replacement": "e", "prepend_scheme": "never"}); 16],
        ),
        pre("g-bytes-meta", vec![bytes.clone(), meta.clone()]),
        pre("g-meta-bytes", vec![meta.clone(), bytes.clone()]),
        pre(
            "g-all-kinds",
            vec![
                json!({"type": "Whitespace"}),
                json!({"type": "Punctuation"}),
                json!({"type": "Digits", "individual_digits": false}),
                meta,
                bytes,
            ],
        ),
        pre("g-sixteen-letters", vec![by("Isolated", false, "(?s:.)"); 16]),
        pre("g-sixteen-empty", vec![by("Isolated", false, "(?=.)"); 16]),
        pre("g-splits-away", vec![by("Removed", false, "(?s:.)")]),
    ];
    for behavior in behaviors {
        cases.push(pre(&format!("g-{behavior}"), vec![by(behavior, true, "a|(?=b)|")]));
        cases.push(pre(&format!("g-{behavior}-space"), vec![by(behavior, false, r"\s|")]));
    }
    cases
}

fn tokens() -> Vec<Case> {
    let with = |name: &str, list: Vec<Value>| {
        let expected = if name.ends_with("-strips") { Refused("of spaces") } else { Works };
        Case::part(name, expected, "added_tokens", json!(list))
    };
    let flagged = |id: i64, text: &str, flags: &[&str]| {
        let mut token = added(id, text);
        flags.iter().for_each(|flag| token[*flag] = json!(true));
        token
    };
    let all = ["lstrip", "rstrip", "single_word", "normalized"];
    let prefixes = (1..1400).map(|n| added(261 + n, &"<".repeat(usize::try_from(n).unwrap() + 1)));
    let long = (0..250_i64).map(|n| added(262 + n, &format!("{n:04}{}", "é".repeat(2046))));
    let most = (0..65_536_i64).map(|n| added(262 + n, &format!("<{n}>")));
    let text = good().to_string();
    let model =
        |name: &str, expected, key: &str, value: Value| Case::model(name, expected, key, value);
    let large: Map<String, Value> = (0..500_000).map(|id| (format!("{id:x}"), json!(id))).collect();
    let wide: Map<String, Value> =
        (0..9_000).map(|id| (format!("{id}{}", "x".repeat(4000)), json!(id))).collect();
    let alone = |vocab: Map<String, Value>, merges: Value| {
        json!({"type": "BPE", "vocab": vocab,
        "merges": merges})
    };
    let mut lone = good();
    lone["added_tokens"] = json!([]);
    let whole = |name: &str, expected, vocab, merges| {
        let mut json = lone.clone();
        json["model"] = alone(vocab, merges);
        Case::raw(name, expected, json.to_string())
    };
    let doubling: Vec<String> = (0..13).map(|n| "a".repeat(1 << n)).collect();
    let powers: Map<String, Value> =
        doubling.iter().zip(0..).map(|(text, id)| (text.clone(), json!(id))).collect();
    let merges: Vec<Value> = doubling[..12].iter().map(|text| json!([text, text])).collect();
    vec![
        with(
            "t-strips-spaces",
            vec![flagged(262, "a", &[]), flagged(263, "b", &all)]
                .split_off(1)
                .into_iter()
                .map(|mut token| {
                    token["id"] = json!(98);
                    token
                })
                .collect(),
        ),
        with("t-space-strips", vec![flagged(262, "  ", &["lstrip", "rstrip"])]),
        with(
            "t-newline-strips",
            vec![flagged(10, "\u{10a}", &["lstrip"]), flagged(262, "\n", &["rstrip"])],
        ),
        with("t-overlap", vec![flagged(262, "a ", &["rstrip"]), flagged(263, " a", &["lstrip"])]),
        with(
            "t-word",
            vec![flagged(262, "aaa", &["single_word"]), flagged(263, "語語", &["single_word"])],
        ),
        with("t-prefixes", prefixes.collect()),
        with("t-most-bytes", long.collect()),
        with("t-most", most.collect()),
        with("t-mark", vec![flagged(262, "\u{301}", &["normalized"])]),
        with("t-null", vec![added(262, "\0")]),
        whole("t-million", Works, large, json!([])),
        whole("t-wide", Works, wide, json!([])),
        whole("t-doubling", Works, powers, json!(merges)),
        whole("t-empty-text", Works, [(String::new(), json!(0))].into_iter().collect(), json!([])),
        whole(
            "t-empty-merge",
            Works,
            ["", "a"].into_iter().zip(0..).map(|(a, b)| (a.into(), json!(b))).collect(),
            json!([["", "a"], ["a", ""], ["", ""]]),
        ),
        whole(
            "t-far-ids",
            Works,
            [("a".to_owned(), json!(4_194_303))].into_iter().collect(),
            json!([]),
        ),
        model("t-merge-twice", Works, "merges", json!(["h e", "h e", "l l"])),
        model("t-million-merges", Works, "merges", json!(vec![["h", "e"]; 1 << 20])),
        model("t-version-line", Works, "merges", json!(["#version: 0.2", "h e"])),
        model("t-merges-mixed", Works, "merges", json!(["h e", ["l", "l"]])),
        model("t-unk", Works, "unk_token", json!("he")),
        model("t-unk-number", Refused("invalid type"), "unk_token", json!(5)),
        model("t-vocab-null", Refused("not a tokenizer"), "vocab", json!(null)),
        model("t-flags-null", Works, "ignore_merges", json!(null)),
        Case::raw(
            "t-id-exponent",
            Refused("not a tokenizer"),
            text.replacen("\"he\":256", "\"he\":2e2", 1),
        ),
        Case::raw(
            "t-id-zeroes",
            Refused("not a tokenizer"),
            text.replacen("\"he\":256", "\"he\":0256", 1),
        ),
        Case::raw(
            "t-id-object",
            Refused("not a tokenizer"),
            text.replacen("\"he\":256", "\"he\":{}", 1),
        ),
        Case::raw(
            "t-escaped-twice",
            Refused("one text has ids"),
            text.replacen("\"he\":256", "\"he\":256,\"\\u0068e\":9000", 1),
        ),
    ]
}

fn json_text() -> Vec<Case> {
    let text = good().to_string();
    let put = |with: &str| text.replacen('{', &format!("{{{with},"), 1);
    vec![
        Case::raw("j-bom", Refused("not a tokenizer"), format!("\u{feff}{text}")),
        Case::raw(
            "j-utf16",
            Refused("not a tokenizer"),
            text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>(),
        ),
        Case::raw("j-nul", Refused("not a tokenizer"), vec![0; 1 << 20]),
        Case::raw("j-open", Refused("not a tokenizer"), "[".repeat(60 << 20)),
        Case::raw("j-open-objects", Refused("not a tokenizer"), "{\"a\":".repeat(12 << 20)),
        Case::raw(
            "j-many-keys",
            Works,
            put(&(0..500_000).map(|n| format!("\"k{n}\":0")).collect::<Vec<_>>().join(",")),
        ),
        Case::raw("j-same-keys", Works, put(&vec!["\"k\":0"; 500_000].join(","))),
        Case::raw("j-long-key", Works, put(&format!("\"{}\":0", "k".repeat(40 << 20)))),
        Case::raw("j-long-number", Works, put(&format!("\"k\":{}", "9".repeat(40 << 20)))),
        Case::raw(
            "j-surrogate",
            Refused("not a tokenizer"),
            text.replacen("\"he\":", "\"\\ud800\":", 1),
        ),
        Case::raw("j-comment", Refused("not a tokenizer"), format!("// x\n{text}")),
        Case::raw("j-nan", Refused("not a tokenizer"), put("\"k\":NaN")),
        Case::raw("j-two", Refused("trailing"), format!("{text}{text}")),
        Case::raw("j-version-number", Refused("not a tokenizer"), text.replace("\"1.0\"", "1.0")),
        Case::raw("j-version-null", Works, text.replace("\"1.0\"", "null")),
        Case::part("j-added-null", Works, "added_tokens", Value::Null),
        Case::part("j-types", Refused("`decoder`"), "decoder", json!({"type": ["ByteLevel"]})),
        Case::raw(
            "j-type-twice",
            Refused("`decoder`"),
            text.replacen("\"decoder\":{", "\"decoder\":{\"type\":\"Fuse\",", 1),
        ),
        Case::part(
            "j-part-spaces",
            Refused("bytes of JSON"),
            "decoder",
            json!({"type": " ".repeat(70_000)}),
        ),
        Case::part(
            "j-type-64k",
            Refused("unknown variant"),
            "decoder",
            json!({"type": "\u{1b}]0;x\u{7}".repeat(4_000)}),
        ),
        Case::part(
            "j-nested-60",
            Works,
            "decoder",
            nested("decoders", 60, json!({"type": "Fuse"})),
        ),
        Case::part(
            "j-nested-wide",
            Refused("steps"),
            "pre_tokenizer",
            nested(
                "pretokenizers",
                20,
                list("pretokenizers", vec![json!({"type": "WhitespaceSplit"}); 17]),
            ),
        ),
        Case::config("j-config-open", Refused("not JSON"), "[".repeat(4_000_000)),
        Case::config("j-config-numbers", Works, format!("{{\"k\":[{}0]}}", "0,".repeat(2_000_000))),
        Case::config("j-config-long", Refused("more than the limit"), " ".repeat((4 << 20) + 1)),
        Case::config(
            "j-config-role",
            Refused("`bos_token`"),
            r#"{"bos_token": {"content": 5, "x": "\u001b\n"}}"#,
        ),
        Case::config("j-config-bos", Works, r#"{"bos_token": "<|zz|>", "add_bos_token": true}"#),
    ]
}

fn mixtures() -> Vec<Case> {
    let mut unknown = good();
    unknown["model"]["vocab"] = json!({"é": 0, "▁": 1});
    unknown["model"]["merges"] = json!([]);
    unknown["added_tokens"] = json!([added(2, "<|im_start|>")]);
    unknown["normalizer"] = replace(" ", "▁");
    let mut every = good();
    every["added_tokens"] = json!(
        (0..256_i64)
            .map(|id| added(
                262 + id,
                &format!("{}a", char::from_u32(0x4e00 + u32::try_from(id).unwrap()).unwrap())
            ))
            .collect::<Vec<_>>()
    );
    every["normalizer"] = json!({"type": "Prepend", "prepend": "x".repeat(15)});
    let mut spaced = good();
    let mut token = added(262, "1");
    token["normalized"] = json!(true);
    spaced["model"]["vocab"].as_object_mut().unwrap().shift_remove("1");
    spaced["model"]["vocab"]["zz"] = json!(49);
    spaced["added_tokens"] = json!([token]);
    spaced["normalizer"] = json!({"type": "Prepend", "prepend": "y".repeat(15)});
    let mut same = good();
    let mut upper = added(263, "<A>");
    upper["normalized"] = json!(true);
    let mut lower = added(262, "<a>");
    lower["normalized"] = json!(true);
    same["added_tokens"] = json!([lower, upper]);
    same["normalizer"] = json!({"type": "Lowercase"});
    let mut gone = good();
    let mut token = added(262, "zz");
    token["normalized"] = json!(true);
    gone["added_tokens"] = json!([token]);
    gone["normalizer"] = replace("zz", "");
    let mut merged = good();
    merged["pre_tokenizer"] = split("(?s:.+)");
    vec![
        Case::raw("m-no-bytes", Works, unknown.to_string()),
        Case::raw("m-prepend-pieces", Works, every.to_string()),
        Case::raw("m-prepend-each", Works, spaced.to_string()),
        Case::raw("m-same-normalized", Refused("the same text when"), same.to_string()),
        Case::raw("m-normalized-away", Refused("nothing is left"), gone.to_string()),
        Case::raw("m-one-piece", Works, merged.to_string()),
    ]
}
