//! Hostile files: the four parts around the model.

use serde_json::{Value, json};

use crate::cases::Expected::{Refused, Works};
use crate::cases::{Case, nested, replace, split};

pub(super) fn normalizers() -> Vec<Case> {
    let case = |name: &str, expected, value| Case::part(name, expected, "normalizer", value);
    let list = |name: &str, expected, steps: Vec<Value>| {
        case(name, expected, json!({"type": "Sequence", "normalizers": steps}))
    };
    let kind = |kind: &str| json!({"type": kind});
    let regex =
        |pattern: &str| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": "x"});
    let prepend = |text: &str| json!({"type": "Prepend", "prepend": text});
    vec![
        case("replace-nothing", Refused("a replacement with an empty pattern"), replace("", "x")),
        case("replace-empty-match", Refused("an expression is not supported"), regex("x*")),
        case("replace-look", Refused("an expression is not supported"), regex("(?=a)")),
        case("replace-grows", Refused("times as long"), replace("a", &"a".repeat(100))),
        case("replace-giant", Refused("a replacement of"), replace("a", &"a".repeat(60_000))),
        case("replace-long-pattern", Refused("a replacement of"), replace(&"a".repeat(9_999), "b")),
        case("replace-huge", Refused("bytes of JSON"), replace("a", &"a".repeat(1 << 20))),
        list("replace-chain", Refused("times as long"), vec![replace("a", "aaaa"); 16]),
        list(
            "replace-chain-other",
            Refused("times as long"),
            vec![replace("a", "bb"), replace("b", "cccccc"), replace("c", "dddddddd")],
        ),
        list("replace-shrinks", Works, vec![replace("aa", "a"); 16]),
        list("replace-many", Refused("more than 16 steps"), vec![replace("aa", "a"); 17]),
        list("replace-removes", Works, vec![replace("a", "")]),
        list("prepend-chain", Refused("times as long"), vec![prepend("xxxxxxxx"); 9]),
        case("prepend-giant", Refused("a replacement of"), prepend(&"x".repeat(50_000))),
        case("prepend-empty", Works, prepend("")),
        list("nfkd-chain", Works, vec![kind("NFKD"); 16]),
        list("forms", Works, ["NFC", "NFD", "NFKC", "NFKD", "Lowercase"].map(kind).to_vec()),
        case(
            "nfkd-and-replace",
            Works,
            json!({"type": "Sequence", "normalizers": [kind("NFKD"), replace(" ", "▁")]}),
        ),
        case(
            "precompiled",
            Refused("unknown variant `Precompiled`"),
            json!({"type": "Precompiled", "precompiled_charsmap": ""}),
        ),
        case(
            "precompiled-broken",
            Refused("unknown variant"),
            json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA//8="}),
        ),
        case("strip-accents", Refused("unknown variant"), kind("StripAccents")),
        case("no-type", Refused("`type`"), json!({"prepend": "x"})),
        case("normalizer-text", Refused("`normalizer`"), json!("NFC")),
        case("normalizer-unknown", Refused("unknown variant"), kind("\n\u{1b}[31mX")),
        case("normalizer-nested", Works, nested("normalizers", 40, kind("NFC"))),
        case(
            "normalizer-too-nested",
            Refused("bytes of JSON"),
            nested("normalizers", 5000, kind("NFC")),
        ),
        list("normalizer-empty", Works, vec![]),
        list("normalizer-wide", Refused("bytes of JSON"), vec![kind("NFC"); 100_000]),
    ]
}

pub(super) fn pre_tokenizers() -> Vec<Case> {
    let case = |name: &str, expected, value| Case::part(name, expected, "pre_tokenizer", value);
    let list = |name: &str, expected, steps: Vec<Value>| {
        case(name, expected, json!({"type": "Sequence", "pretokenizers": steps}))
    };
    let text = |pattern: &str| {
        json!({"type": "Split", "pattern": {"String": pattern},
        "behavior": "Removed", "invert": true})
    };
    let bytes =
        |adds: bool| json!({"type": "ByteLevel", "add_prefix_space": adds, "trim_offsets": true});
    let meta = json!({"type": "Metaspace", "replacement": "▁"});
    vec![
        case(
            "fixed-length-0",
            Refused("unknown variant `FixedLength`"),
            json!({"type": "FixedLength", "length": 0}),
        ),
        case("bert", Refused("unknown variant"), json!({"type": "BertPreTokenizer"})),
        case("split-nothing", Refused("without characters"), text("")),
        case("split-text", Works, text("a")),
        case("split-long", Refused("an expression of"), text(&"a".repeat(9_000))),
        case(
            "split-no-pattern",
            Refused("missing field"),
            json!({"type": "Split", "behavior": "Isolated", "invert": false}),
        ),
        case(
            "split-behavior",
            Refused("unknown variant"),
            json!({"type": "Split", "pattern": {"String": "a"}, "behavior": "Eaten",
                "invert": false}),
        ),
        list("bytes-twice", Refused("more than one step of type ByteLevel"), vec![bytes(false); 2]),
        list("bytes-many", Refused("more than one step"), vec![bytes(true); 16]),
        case("bytes-space", Works, bytes(true)),
        list(
            "metaspace-many",
            Refused("more than one step of type Metaspace"),
            vec![meta.clone(); 8],
        ),
        case("metaspace", Works, meta),
        case(
            "metaspace-long",
            Refused("expected a character"),
            json!({"type": "Metaspace", "replacement": "xx"}),
        ),
        case(
            "metaspace-contradiction",
            Refused("contradict"),
            json!({"type": "Metaspace", "replacement": "_", "add_prefix_space": false,
                "prepend_scheme": "always"}),
        ),
        case(
            "metaspace-scheme",
            Refused("unknown variant"),
            json!({"type": "Metaspace", "replacement": "_", "prepend_scheme": "often"}),
        ),
        list("steps-16", Works, vec![json!({"type": "WhitespaceSplit"}); 16]),
        list("steps-17", Refused("more than 16 steps"), vec![json!({"type": "Whitespace"}); 17]),
        case(
            "pre-nested",
            Works,
            nested("pretokenizers", 40, json!({"type": "Digits", "individual_digits": true})),
        ),
        case("pre-too-nested", Refused("recursion"), nested("pretokenizers", 500, bytes(false))),
        list("pre-wide", Refused("bytes of JSON"), vec![bytes(false); 50_000]),
        case("pre-list", Refused("`pre_tokenizer`"), json!([bytes(false)])),
        case("punctuation", Works, json!({"type": "Punctuation", "behavior": "Contiguous"})),
    ]
}

pub(super) fn expressions() -> Vec<Case> {
    let many = |expressions: Vec<String>| {
        json!({"type": "Sequence",
        "pretokenizers": expressions.iter().map(|it| split(it)).collect::<Vec<_>>()})
    };
    let classes =
        |n: usize| (0..n).map(|n| format!(r"(?i:[\p{{L}}{}])", n % 10)).collect::<String>();
    vec![
        Case::split("nested-plus", Refused("takes too many steps"), "(?:a+)+b"),
        Case::split("nested-star", Refused("takes too many steps"), "(?:a|a)*$b"),
        Case::split("many-plus", Refused("takes too many steps"), "a+a+a+a+a+b"),
        Case::split("ahead-far", Works, "a(?=[^x]*x)|."),
        Case::split("class-far", Works, "[^x]*x|."),
        Case::split("lazy-far", Refused("takes too many steps"), "(?s:.)*?x|."),
        Case::split("behind", Works, "(?<=a)b"),
        Case::split("behind-varying", Refused("varying number"), "(?<=a+)b"),
        Case::split("counted", Refused("repetition count above"), "a{1000000}"),
        Case::split("counted-2", Refused("repetition count above"), "a{2,99999999999}"),
        Case::split("counted-overflow", Works, "a{99999999999999999999999}"),
        Case::split("counted-nested", Refused("operations"), "(?:(?:ab){100}){100}"),
        Case::split(
            "counted-nothing",
            Refused("`pre_tokenizer`"),
            "(?:(?:(?:(?:){999}){999}){999}){999}",
        ),
        Case::split("counted-class", Works, r"\p{L}{1000}"),
        Case::split("backreference", Refused("a reference"), r"(a*)\1b"),
        Case::split("recursion", Refused("`pre_tokenizer`"), r"(a\g<0>?b)"),
        Case::split("conditional", Refused("`pre_tokenizer`"), r"(a)?(?(1)b|c)"),
        Case::split("unclosed", Refused("`pre_tokenizer`"), "(("),
        Case::split("parentheses", Refused("`pre_tokenizer`"), &"(".repeat(4000)),
        Case::split(
            "closed-parentheses",
            Refused("`pre_tokenizer`"),
            &("(?:".repeat(900) + &")".repeat(900)),
        ),
        Case::split("brackets", Refused("`pre_tokenizer`"), &"[".repeat(4000)),
        Case::split("stars", Refused("`pre_tokenizer`"), &format!("a{}", "*".repeat(4000))),
        Case::split("empty-expression", Works, ""),
        Case::split("empty-loop", Refused("possibly empty"), "(?:a*)*"),
        Case::split("alternatives", Refused("takes too many steps"), &"a|".repeat(600)),
        Case::split("too-many-alternatives", Refused("operations"), &"a|".repeat(4000)),
        Case::split(
            "classes",
            Refused("sets of characters"),
            &(0..400).map(|n| format!("[ab{n}]")).collect::<String>(),
        ),
        Case::split("folded-classes", Works, &classes(300)),
        Case::split("long-expression", Refused("an expression of"), &"a".repeat(60_000)),
        Case::split("huge-expression", Refused("bytes of JSON"), &"a".repeat(1 << 20)),
        Case::split(
            "property",
            Refused("`pre_tokenizer`"),
            &format!(r"\p{{{}}}", "x".repeat(8000)),
        ),
        Case::split("space-end", Works, r"\s+$"),
        Case::split("words", Works, r"\b\w+\b|\B"),
        Case::split("atomic", Works, r"(?>a+)a|\p{L}++|\s?+"),
        Case::part("sixteen-far", Works, "pre_tokenizer", many(vec!["a(?=[^x]*x)".into(); 16])),
        Case::part(
            "seventeen",
            Refused("more than 16"),
            "pre_tokenizer",
            many(vec!["a".into(); 17]),
        ),
    ]
}

/// Post-processors and decoders.
pub(super) fn ends() -> Vec<Case> {
    let post = |name: &str, expected, value| Case::part(name, expected, "post_processor", value);
    let template = |pieces: Value, special: Value| {
        json!({"type": "TemplateProcessing",
        "single": pieces, "pair": [], "special_tokens": special})
    };
    let a = json!({"Sequence": {"id": "A", "type_id": 0}});
    let token = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let known = |id: i64, text: &str| json!({"x": {"id": "x", "ids": [id], "tokens": [text]}});
    let many = json!({"x": {"id": "x", "ids": vec![262; 70], "tokens": vec!["<|im_start|>"; 70]}});
    let decoder = |name: &str, expected, value| Case::part(name, expected, "decoder", value);
    let decoders = |steps: Vec<Value>| json!({"type": "Sequence", "decoders": steps});
    vec![
        post("template", Works, template(json!([token("x"), a]), known(262, "<|im_start|>"))),
        post(
            "template-no-text",
            Refused("without a text"),
            template(json!([token("x")]), known(262, "<|im_start|>")),
        ),
        post(
            "template-b",
            Refused("text `B`"),
            template(json!([a, {"Sequence": {"id": "B", "type_id": 0}}]), json!({})),
        ),
        post("template-twice", Refused("text `A`"), template(json!([a, a]), json!({}))),
        post(
            "template-undefined",
            Refused("does not define"),
            template(json!([token("\n<zz>"), a]), json!({})),
        ),
        post(
            "template-unknown-id",
            Refused("should have id 999999"),
            template(json!([token("x"), a]), known(999_999, "zz")),
        ),
        post(
            "template-other-id",
            Refused("should have id 7"),
            template(json!([token("x"), a]), known(7, "<|im_start|>")),
        ),
        post(
            "template-negative",
            Refused("invalid value"),
            template(json!([token("x"), a]), known(-7, "<|im_start|>")),
        ),
        post(
            "template-unequal",
            Refused("unequal numbers"),
            template(
                json!([token("x"), a]),
                json!({"x": {"id": "x", "ids": [1, 2], "tokens": []}}),
            ),
        ),
        post(
            "template-many",
            Refused("more than 64 tokens"),
            template(json!([token("x"), a]), many),
        ),
        post(
            "template-wide",
            Refused("bytes of JSON"),
            template(json!(vec![token("x"); 1_000_000]), json!({})),
        ),
        post("template-no-pieces", Refused("without a text"), template(json!([]), json!({}))),
        post("template-words", Refused("`post_processor`"), template(json!(["$A"]), json!({}))),
        post(
            "bert-unknown",
            Refused("should have id 101"),
            json!({"type": "BertProcessing", "sep": ["[SEP]", 102], "cls": ["[CLS]", 101]}),
        ),
        post(
            "roberta",
            Works,
            json!({"type": "RobertaProcessing", "sep": ["<|im_end|>", 263], 
                "cls": ["<|im_start|>", 262],
                "trim_offsets": true, "add_prefix_space": true}),
        ),
        post(
            "post-nested",
            Works,
            nested(
                "processors",
                40,
                json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true}),
            ),
        ),
        post(
            "post-too-nested",
            Refused("recursion"),
            nested("processors", 400, json!({"type": "ByteLevel"})),
        ),
        post("post-unknown", Refused("unknown variant"), json!({"type": "Shuffle"})),
        decoder(
            "strip-stop",
            Refused("from the end of tokens"),
            json!({"type": "Strip", "content": " ", "start": 0, "stop": 1}),
        ),
        decoder(
            "strip-stop-nested",
            Refused("from the end of tokens"),
            decoders(vec![decoders(vec![
                json!({"type": "Strip", "content": " ", "start": 1, "stop": 9}),
            ])]),
        ),
        decoder(
            "strip-huge",
            Works,
            json!({"type": "Strip", "content": "e", "start": usize::MAX, "stop": 0}),
        ),
        decoder(
            "strip-negative",
            Refused("`decoder`"),
            json!({"type": "Strip", "content": "e", "start": -1, "stop": 0}),
        ),
        decoder(
            "decoder-grows",
            Refused("times as long"),
            decoders(vec![replace("e", "eeeeeeee"); 3]),
        ),
        decoder("decoder-empty", Refused("a replacement with an empty pattern"), replace("", "e")),
        decoder(
            "decoder-regex",
            Refused("an expression"),
            json!({"type": "Replace", "pattern": {"Regex": "(e*)*"}, "content": ""}),
        ),
        decoder(
            "ctc",
            Refused("unknown variant"),
            json!({"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": true}),
        ),
        decoder(
            "bpe-decoder",
            Refused("unknown variant"),
            json!({"type": "BPEDecoder", "suffix": ""}),
        ),
        decoder(
            "decoder-many",
            Refused("more than 16"),
            decoders(vec![json!({"type": "Fuse"}); 17]),
        ),
        decoder(
            "decoder-fallback",
            Works,
            decoders(vec![
                json!({"type": "ByteFallback"}),
                json!({"type": "Fuse"}),
                replace("▁", " "),
            ]),
        ),
        decoder("decoder-bytes-16", Works, decoders(vec![json!({"type": "ByteLevel"}); 16])),
        decoder(
            "decoder-nested",
            Refused("recursion"),
            nested("decoders", 1000, json!({"type": "Fuse"})),
        ),
        decoder("decoder-number", Refused("`decoder`"), json!(5)),
        decoder("no-decoder", Works, json!(null)),
    ]
}
