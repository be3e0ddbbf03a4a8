//! Keywords that are refused or without effect, references, limits, and schemas that expand too
//! much.

use serde_json::json;

use super::*;
use crate::grammar::schema::PROPERTIES_MAX;

fn grammars() -> Grammars {
    Grammars::new(model_of(&[], &[]), None)
}

fn refusal(grammars: &Grammars, schema: Json) -> RuleError {
    let rules = AnswerRules { form: AnswerForm::JsonSchema(schema), ..AnswerRules::default() };
    grammars.constraint(&rules, &[], AnswerStart::Text).expect_err("a schema that is refused")
}

#[test]
fn a_keyword_that_cannot_be_enforced_is_named_with_its_place() {
    let grammars = grammars();
    let check = |keyword: &str, value: Json, around: Json| {
        let mut inner = json!({keyword: value});
        for (name, value) in around.as_object().unwrap() {
            inner[name] = value.clone();
        }
        let schema = json!({"type": "object", "properties": {"a/b": {"anyOf": [true, inner]}}});
        let refusal = refusal(&grammars, schema);
        let expected = format!(
            "the schema's keyword `{keyword}` at /properties/a~1b/anyOf/1/{keyword} cannot be \
             enforced: "
        );
        assert!(refusal.problem.starts_with(&expected), "{}", refusal.problem);
        assert!(!refusal.problem.contains('\n') && refusal.part == RulePart::Form);
    };
    check("not", json!({}), json!({}));
    check("if", json!({}), json!({"then": {"type": "null"}}));
    check("contains", json!(true), json!({}));
    check("minContains", json!(2), json!({"contains": {}}));
    check("uniqueItems", json!(true), json!({}));
    check("dependentRequired", json!({"a": ["b"]}), json!({}));
    check("dependentSchemas", json!({"a": {}}), json!({}));
    check("dependencies", json!({"a": ["b"]}), json!({}));
    check("unevaluatedItems", json!(false), json!({}));
    check("unevaluatedProperties", json!({"type": "null"}), json!({}));
    check("propertyNames", json!({"maxLength": 3}), json!({}));
    check("$dynamicRef", json!("#a"), json!({}));
    check("$recursiveRef", json!("#"), json!({}));
    check("$id", json!("http://a/b"), json!({}));
    check("$ref", json!("http://a/b"), json!({}));
    check("$ref", json!("#/$defs/missing"), json!({}));
    check("$ref", json!("#missing"), json!({}));
    check("$ref", json!("#/type"), json!({}));
    check("$ref", json!(3), json!({}));
    check("type", json!("strnig"), json!({}));
    check("type", json!([]), json!({}));
    check("enum", json!([1, 9_007_199_254_740_993_u64]), json!({}));
    check("const", json!({"a": [-9_007_199_254_740_993_i64]}), json!({}));
    check("minimum", json!("3"), json!({}));
    check("maximum", json!(u64::MAX), json!({}));
    check("multipleOf", json!(1_000_000_000), json!({}));
    check("multipleOf", json!(7e-9), json!({}));
    check("minItems", json!(-1), json!({}));
    check("maxLength", json!(2_000_000), json!({}));
    check("minProperties", json!(2), json!({"required": ["a"]}));
    check("format", json!("regex"), json!({}));
    check("format", json!("binary"), json!({"type": ["string", "null"]}));
    check("pattern", json!("(?!a)"), json!({}));
    check("patternProperties", json!({"\\b": {}}), json!({}));
    check("patternProperties", json!({"^\\d$": {"type": "string"}, "^[0-9]$": {}}), json!({}));
    check("required", json!("a"), json!({}));
    check("properties", json!([]), json!({}));
    check("allOf", json!({}), json!({}));
}

#[test]
fn refusals_of_llguidance_are_one_line() {
    let grammars = grammars();
    let check = |schema: Json, expected: &str| {
        let refusal = refusal(&grammars, schema);
        assert!(refusal.problem.contains(expected), "{}", refusal.problem);
        assert!(!refusal.problem.contains('\n'), "{}", refusal.problem);
    };
    check(json!(false), "allows no value");
    check(json!({"type": "string", "enum": [1]}), "");
    check(json!({"oneOf": [{"minimum": 1}, {"maximum": 3}]}), "`oneOf` at /oneOf cannot");
    check(json!({"patternProperties": {"a": {}, "b": {}}}), "patternProperty regexes");
    let both = json!({"properties": {"a": {}, "b": {}}, "maxProperties": 1});
    check(both, "maxProperties");
}

#[track_caller]
fn check(schema: Json, cases: &[(&str, bool)]) {
    let model = model_of(&[], &[]);
    for (text, is_valid) in cases {
        let mut constraint = form_constraint(&model, AnswerForm::JsonSchema(schema.clone()));
        let found = offer(&mut constraint, &plain(text), N_LOGITS);
        assert_eq!(found == Fate::Whole, *is_valid, "{text} by {schema}: {found:?}");
    }
}

#[test]
fn keywords_without_effect_are_dropped() {
    check(
        json!({
            "$schema": "http://json-schema.org/draft-07/schema#", "title": "t", "x-any": {"not": 1},
            "type": "array", "uniqueItems": false, "minContains": 2, "then": {}, "default": 3,
            "items": {"type": "integer", "format": "int32", "description": "d"},
            "unevaluatedItems": true, "additionalItems": false,
        }),
        &[("[1, 2, 2]", true), ("[\"a\"]", false)],
    );
    check(
        json!({"propertyNames": {"type": "string"}, "required": ["a"], "minProperties": 1.0}),
        &[(r#"{"a": 1}"#, true), ("3", true), ("{}", false)],
    );
}

#[test]
fn keywords_that_belong_together_are_read_together() {
    check(
        json!({"type": "array", "items": [{"type": "integer"}],
            "anyOf": [{"minItems": 1}, {"maxItems": 5}], "additionalItems": false}),
        &[("[1]", true), ("[1, \"x\"]", false)],
    );
    for (bound, exclusive, inside) in
        [("minimum", "exclusiveMinimum", "4"), ("maximum", "exclusiveMaximum", "2")]
    {
        check(
            json!({"type": "integer", bound: 3, "anyOf": [{}], exclusive: true}),
            &[(inside, true), ("3", false)],
        );
    }
}

#[test]
fn divisors_are_held_to_their_last_digit() {
    check(
        json!({"type": "integer", "multipleOf": 400_000_000}),
        &[("800000000", true), ("4000000000", true), ("400000001", false), ("116968960", false)],
    );
    check(
        json!({"type": "integer", "allOf": [{"multipleOf": 250}, {"multipleOf": 40}]}),
        &[("2000", true), ("250", false), ("1400", false)],
    );
}

#[test]
fn references_are_followed_in_every_way_they_are_written() {
    let schema = json!({
        "type": "object",
        "properties": {
            "a": {"$ref": "#/$defs/with~1slash%20and%25"}, "b": {"$ref": "#name"},
            "c": {"$ref": "#/properties/a"}, "d": {"$ref": "#"},
        },
        "required": ["a"], "additionalProperties": false,
        "$defs": {
            "with/slash and%": {"type": "integer"}, "other": {"$anchor": "name", "const": "x"},
            "unused": {"not": {}},
        },
    });
    check(
        schema,
        &[
            (r#"{"a": 1, "b": "x", "c": 2, "d": {"a": 3, "d": {"a": 4}}}"#, true),
            (r#"{"a": "1"}"#, false),
            (r#"{"a": 1, "b": "y"}"#, false),
            (r#"{"a": 1, "c": "2"}"#, false),
            (r#"{"a": 1, "d": {}}"#, false),
        ],
    );
    // Cases that differ only in their referenced schemas, as pydantic writes them.
    let case = |kind: &str| {
        json!({"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"],
            "additionalProperties": false})
    };
    check(
        json!({"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
            "$defs": {"cat": case("cat"), "dog": case("dog")}}),
        &[(r#"{"kind": "dog"}"#, true), (r#"{"kind": "cow"}"#, false)],
    );
}

#[test]
fn dates_and_times_are_those_of_the_calendar() {
    let of = |format: &str| json!({"type": "string", "format": format, "pattern": "^[0-9]"});
    check(
        of("date"),
        &[
            ("\"2024-02-29\"", true),
            ("\"2000-02-29\"", true),
            ("\"1900-02-29\"", false),
            ("\"2023-02-29\"", false),
            ("\"2023-11-31\"", false),
        ],
    );
    check(
        of("time"),
        &[("\"23:59:59.123Z\"", true), ("\"23:59:60Z\"", false), ("\"9:00Z\"", false)],
    );
    let cases = [("\"2026-11-23T10:00:00+01:30\"", true), ("\"2026-11-23 10:00:00Z\"", false)];
    check(of("date-time"), &cases);
}

#[test]
fn names_that_are_written_with_escapes_do_not_pass_a_declared_property_by() {
    let schema = json!({"type": "object", "properties": {"ab": {"type": "integer"}}});
    check(
        schema,
        &[
            (r#"{"ab": 1, "x": "\n"}"#, true),
            (r#"{"\u0061b": "x"}"#, false),
            (r#"{"x": 1, "ab": "x"}"#, false),
        ],
    );
    let closed = json!({"type": "object", "properties": {"ab": {}}, "additionalProperties": false});
    check(closed, &[(r#"{"ab": "\u001b"}"#, true)]);
}

/// Returns a schema whose definitions each refer twice to the next, with a sibling keyword that
/// forces a copy.
fn doubling(n_levels: usize) -> Json {
    let level = |idx: usize| {
        let next = json!({"$ref": format!("#/$defs/l{}", idx + 1), "minProperties": 1});
        json!({"type": "object", "properties": {"x": next, "y": next}})
    };
    let mut levels: serde_json::Map<String, Json> =
        (0..n_levels).map(|idx| (format!("l{idx}"), level(idx))).collect();
    levels.insert(format!("l{n_levels}"), json!({"type": "object"}));
    json!({"$ref": "#/$defs/l0", "$defs": levels})
}

/// Returns a schema whose definitions each refer twice to the next.
fn binary(n_levels: usize) -> Json {
    chain(n_levels, |next| json!({"type": "object", "properties": {"x": next, "y": next}}))
}

/// Returns a schema that demands the same twice, the second time under other names.
fn twice(schema: &Json) -> Json {
    let text = schema["$defs"].to_string();
    let mut targets: Json = serde_json::from_str(&text).unwrap();
    let others: Json =
        serde_json::from_str(&text.replace("\"l", "\"m").replace("/l", "/m")).unwrap();
    for (name, other) in others.as_object().unwrap() {
        targets[name] = other.clone();
    }
    json!({"allOf": [{"$ref": "#/$defs/l0"}, {"$ref": "#/$defs/m0"}], "$defs": targets})
}

/// Returns a schema whose definitions each refer to the next.
fn chain(n_levels: usize, link: impl Fn(Json) -> Json) -> Json {
    let level = |idx: usize| link(json!({"$ref": format!("#/$defs/l{}", idx + 1)}));
    let mut levels: serde_json::Map<String, Json> =
        (0..n_levels).map(|idx| (format!("l{idx}"), level(idx))).collect();
    levels.insert(format!("l{n_levels}"), json!({"type": "null"}));
    json!({"$ref": "#/$defs/l0", "$defs": levels})
}

/// Returns a schema in which all parts apply, each with `n_options` options.
fn product(n_parts: usize, n_options: usize) -> Json {
    let option = |part: usize, idx: usize| {
        let properties = json!({format!("p{part}"): {"const": idx}});
        json!({"type": "object", "properties": properties})
    };
    let options = |part| (0..n_options).map(|idx| option(part, idx)).collect::<Vec<_>>();
    let parts = (0..n_parts).map(|part| json!({"anyOf": options(part)}));
    json!({"allOf": parts.collect::<Vec<_>>()})
}

/// Returns a schema that refers to one large part by different pointers: a tilde may be escaped or
/// not.
fn spellings() -> Json {
    let spelling = |bits: usize| -> String {
        (0..6).map(|bit| if bits >> bit & 1 == 0 { "~" } else { "~0" }).collect()
    };
    let options: Vec<Json> =
        (0..64).map(|bits| json!({"$ref": format!("#/$defs/{}", spelling(bits))})).collect();
    json!({"anyOf": options, "$defs": {"~~~~~~": {"const": "x".repeat(20_000)}}})
}

/// Returns a schema with `n_references` references to the last anchor of a large schema.
fn anchors(n_references: usize) -> Json {
    let mut options = vec![json!({"$ref": "#x"}); n_references];
    options.push(json!({"not": {}}));
    json!({"anyOf": options, "$defs": {"last": {"$anchor": "x"}}})
}

#[test]
fn schemas_that_explode_are_refused_on_a_small_stack_and_soon() {
    let many = |n: usize| -> Json {
        let property = |idx: usize| (format!("p{idx}"), json!({"type": "integer"}));
        json!({"properties": (0..n).map(property).collect::<serde_json::Map<_, _>>()})
    };
    let patterns: serde_json::Map<_, _> =
        (0..17).map(|idx| (format!("^{idx}"), json!({}))).collect();
    let mut deep = json!({"type": "null"});
    for _ in 0..200 {
        deep = json!({"items": deep});
    }
    let cases = [
        (doubling(40), "nested more than"),
        (twice(&binary(20)), "steps to write out"),
        (doubling(14), "parts when"),
        (product(20, 4), "parts when"),
        (product(2, 500), "parts when"),
        (chain(1_000, |next| json!({"allOf": [next]})), "nested more than"),
        (chain(1_000, |next| json!({"items": next})), "nested more than"),
        (chain(1_000, |next| next), "nested more than"),
        (chain(30, |next| json!({"oneOf": [next.clone(), next]})), "references are written out"),
        (spellings(), "references are written out"),
        (anchors(12_000), "keyword `not`"),
        (deep, "nested more than"),
        (many(500), "the limit is 400"),
        (json!({"patternProperties": patterns}), "the limit is 16"),
        (json!({"description": "x".repeat(300_000)}), "bytes; the limit is 262144"),
        (json!({"pattern": "(a{100}){1000}"}), "repetitions"),
    ];
    let check = move || {
        let grammars = grammars();
        for (schema, expected) in &cases {
            let refusal = refusal(&grammars, schema.clone());
            assert!(refusal.problem.contains(expected), "{expected}: {}", refusal.problem);
        }
    };
    // A thread has two megabytes unless it asks for more.
    let thread = std::thread::Builder::new().name("small stack".into()).stack_size(1 << 20);
    thread.spawn(check).unwrap().join().unwrap();
}

#[test]
fn schemas_at_the_limits_are_taken_on_a_small_stack() {
    let small = |schema: Json| {
        let rules = AnswerRules { form: AnswerForm::JsonSchema(schema), ..AnswerRules::default() };
        let run = move || {
            let grammars = grammars();
            let constraint = grammars.constraint(&rules, &[], AnswerStart::Text);
            constraint.map(|it| allowed(&mut it.unwrap(), N_LOGITS).len())
        };
        let thread = std::thread::Builder::new().name("small stack".into()).stack_size(2 << 20);
        thread.spawn(run).unwrap().join().unwrap()
    };
    for schema in [
        chain(30, |next| json!({"allOf": [next], "minProperties": 1})),
        chain(30, |next| json!({"type": "object", "properties": {"a": next}})),
        chain(60, |next| next),
        binary(25),
        product(4, 4),
        json!({"type": "string", "minLength": 100_000, "maxLength": 1_000_000}),
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 1_000_000}),
        json!({"type": "number", "multipleOf": 0.01, "minimum": -1e15, "maximum": 1e15}),
    ] {
        let n_allowed = small(schema.clone());
        assert!(n_allowed.as_ref().is_ok_and(|it| *it > 0), "{n_allowed:?} {schema}");
    }
}

#[test]
fn an_object_of_many_properties_can_be_written() {
    let property = |idx: usize| (format!("p{idx}"), json!({"type": "integer"}));
    let properties: serde_json::Map<_, _> = (0..PROPERTIES_MAX).map(property).collect();
    let last = format!("{{\"p0\": 1, \"p{}\": 2}}", PROPERTIES_MAX - 1);
    let first = format!("{{\"p{}\": 2}}", PROPERTIES_MAX - 1);
    let open = json!({"type": "object", "properties": properties});
    check(open.clone(), &[("{}", true), (&last, true), (&first, true), (r#"{"q": 1}"#, true)]);
    let mut closed = open;
    closed["additionalProperties"] = json!(false);
    check(closed, &[("{}", true), (&last, true), (&first, true), (r#"{"q": 1}"#, false)]);
}

#[test]
fn grammars_of_clients_have_limits() {
    let grammars = grammars();
    let check = |form: AnswerForm, expected: &str| {
        let rules = AnswerRules { form, ..AnswerRules::default() };
        let refusal = grammars.constraint(&rules, &[], AnswerStart::Text).unwrap_err();
        assert!(refusal.problem.contains(expected), "{}", refusal.problem);
        assert!(!refusal.problem.contains('\n'));
    };
    let lark = |text: &str| AnswerForm::Lark(text.to_owned());
    let regex = |text: &str| AnswerForm::Regex(text.to_owned());
    check(lark(&format!("start: \"{}\"", "x".repeat(70_000))), "the limit is 65536");
    check(lark(&format!("start: {}\"a\"{}", "(".repeat(100), ")".repeat(100))), "nested more than");
    let rules: String = (0..600).map(|idx| format!("r{idx}: r{}\n", idx + 1)).collect();
    check(lark(&format!("start: r0\n{rules}r600: \"a\"")), "602 rules; the limit is 500");
    check(lark("start: missing"), "missing");
    check(lark("begin: \"a\""), "start");
    check(lark("start: %json {\"not\": {}}"), "keyword `not` at /not");
    check(lark("start: \"a\" <|nothing|>"), "unknown special token");
    check(regex("("), "");
    check(regex("(?=a)b"), "");
    check(regex(&"a".repeat(20_000)), "the limit is 16384");
    check(regex(&"(".repeat(100)), "nested more than");
}
