//! Answers of a model that chooses tokens uniformly: each one obeys its constraint, or is too long.

use moeflux_testing::random::{Rng, seeds};
use serde_json::json;

use super::*;

/// Generates an answer of at most `n_max` tokens; `None` if it did not end. Forced tokens are taken
/// together or one by one, at random.
fn answer(constraint: &mut Constraint, rng: &mut Rng, n_max: usize) -> Option<Vec<TokenId>> {
    let mut tokens = Vec::new();
    while tokens.len() < n_max {
        if rng.below(2) == 0 {
            for token in forced(constraint) {
                constraint.accept(token);
                tokens.push(token);
            }
        }
        let mut found = allowed(constraint, N_LOGITS);
        if !constraint.may_end() {
            found.retain(|it| *it != END);
        }
        assert!(!found.is_empty(), "no token may follow {tokens:?}");
        let token = found[rng.below(found.len())];
        if token == END {
            return Some(tokens);
        }
        constraint.accept(token);
        assert_eq!(constraint.failure(), None);
        tokens.push(token);
    }
    None
}

/// Tools whose schemas use only the keywords that [`is_valid`] implements.
fn tools() -> Vec<Tool> {
    let of = |name: &str, properties: Json, required: &[&str]| {
        let schema = json!({"type": "object", "properties": properties, "required": required});
        Tool::function(name.into(), None, Some(schema))
    };
    vec![
        of("none", json!({}), &[]),
        of("one", json!({"text": {"type": "string", "maxLength": 4}}), &["text"]),
        of(
            "many",
            json!({
                "flag": {"type": "boolean"}, "kind": {"enum": ["a", "bc"]},
                "n": {"type": "integer", "minimum": 3, "maximum": 12},
                "list": {"type": "array", "items": {"type": "null"}, "maxItems": 2},
            }),
            &["kind", "n"],
        ),
    ]
}

fn is_valid(value: &Json, schema: &Json) -> bool {
    let has_type = match schema["type"].as_str() {
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        Some("null") => value.is_null(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    let count = |name: &str| schema[name].as_u64();
    let number = value.as_u64().unwrap_or_default();
    let is_listed = schema["enum"].as_array().is_none_or(|it| it.contains(value));
    let is_between = count("minimum").is_none_or(|it| it <= number)
        && count("maximum").is_none_or(|it| number <= it);
    let n_characters = value.as_str().map_or(0, |it| it.chars().count() as u64);
    let n_items = value.as_array().map_or(0, |it| it.len() as u64);
    let is_short = count("maxLength").is_none_or(|it| n_characters <= it)
        && count("maxItems").is_none_or(|it| n_items <= it);
    let items = value.as_array().into_iter().flatten();
    let members = value.as_object().into_iter().flatten();
    let has = |name: &Json| value.get(name.as_str().unwrap()).is_some();
    has_type
        && is_listed
        && is_between
        && is_short
        && items.into_iter().all(|it| is_valid(it, &schema["items"]))
        && members.into_iter().all(|(name, it)| {
            schema["properties"].get(name).is_some_and(|schema| is_valid(it, schema))
        })
        && schema["required"].as_array().is_none_or(|names| names.iter().all(has))
}

/// Returns name and arguments of a call in Hermes's format.
fn hermes(text: &str) -> (String, Json) {
    let inner = text.strip_prefix("<tool_call>\n").and_then(|it| it.strip_suffix("\n</tool_call>"));
    let call: Json = serde_json::from_str(inner.unwrap()).unwrap();
    (call["name"].as_str().unwrap().to_owned(), call["arguments"].clone())
}

/// Returns name and arguments of a call in the format of Llama 3.
fn llama(text: &str) -> (String, Json) {
    let call: Json = serde_json::from_str(text).unwrap();
    (call["name"].as_str().unwrap().to_owned(), call["parameters"].clone())
}

/// Returns name and arguments of a call in the format of Qwen3-Coder.
fn qwen_xml(text: &str) -> (String, Json) {
    let inner = text.strip_prefix("<tool_call>\n<function=").unwrap();
    let (name, rest) = inner.split_once(">\n").unwrap();
    let mut rest = rest.strip_suffix("</function>\n</tool_call>").unwrap();
    let mut arguments = json!({});
    while let Some(parameter) = rest.strip_prefix("<parameter=") {
        let (key, after) = parameter.split_once(">\n").unwrap();
        let (value, after) = after.split_once("\n</parameter>\n").unwrap();
        let is_text = ["text", "kind"].contains(&key);
        arguments[key] = if is_text { value.into() } else { serde_json::from_str(value).unwrap() };
        rest = after;
    }
    assert_eq!(rest, "");
    (name.to_owned(), arguments)
}

#[track_caller]
fn check(title: &str, parse: fn(&str) -> (String, Json)) {
    let format = CallFormat::all().find(|it| it.title == title).unwrap();
    let markers: Vec<&str> = format.markers().collect();
    let mut n_ended = 0;
    let n = seeds(200).end;
    for model in [model_of(&[], &[]), model_of(&[], &markers)] {
        let grammars = Grammars::new(model.clone(), Some(format));
        let tools = tools();
        for seed in 0..n / 2 {
            let mut rng = Rng::new(seed);
            let choice = match rng.below(3) {
                0 => ToolChoice::Named(tools[rng.below(3)].name.clone()),
                _ => ToolChoice::Required,
            };
            let rules = AnswerRules {
                tool_choice: choice.clone(),
                is_one_call: true,
                n_thought_tokens_max: Some(5),
                ..AnswerRules::default()
            };
            let mut constraint =
                grammars.constraint(&rules, &tools, AnswerStart::Thought).unwrap().unwrap();
            let Some(tokens) = answer(&mut constraint, &mut rng, 400) else { continue };
            n_ended += 1;
            let bytes: Vec<u8> =
                tokens.iter().flat_map(|it| model.tokenizer().token_bytes(*it)).collect();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let call = text.split_once("</think>\n\n").unwrap().1;
            let (name, arguments) = parse(call);
            let tool = tools.iter().find(|it| it.name == name);
            let is_named = !matches!(&choice, ToolChoice::Named(wanted) if *wanted != name);
            let is_held = tool.is_some_and(|it| is_valid(&arguments, &it.parameters)) && is_named;
            assert!(is_held, "seed {seed} of {title}, {choice:?}: {text}");
        }
    }
    assert!(n_ended > n / 2, "{n_ended} of {n} answers of {title} ended");
}

#[test]
fn demanded_calls_in_json_are_valid() {
    check("hermes", hermes);
    check("llama_3", llama);
}

#[test]
fn demanded_calls_in_tags_are_valid() {
    check("qwen_xml", qwen_xml);
}

#[test]
fn answers_of_a_schema_are_valid() {
    let model = model_of(&["<|special|>"], &["{\"", "\": ", ", \"", "tru"]);
    let grammars = Grammars::new(model.clone(), None);
    let schemas: Vec<Json> = tools().into_iter().map(|tool| tool.parameters).collect();
    let mut n_ended = 0;
    let n = seeds(200).end;
    for seed in 0..n {
        let mut rng = Rng::new(seed);
        let mut schema = schemas[rng.below(schemas.len())].clone();
        schema["additionalProperties"] = Json::Bool(false);
        let form = AnswerForm::JsonSchema(schema.clone());
        let rules = AnswerRules { form, ..AnswerRules::default() };
        let mut constraint = grammars.constraint(&rules, &[], AnswerStart::Text).unwrap().unwrap();
        let Some(tokens) = answer(&mut constraint, &mut rng, 400) else { continue };
        n_ended += 1;
        let text = text_of(&model, &tokens);
        let value = serde_json::from_str(&text).unwrap();
        assert!(is_valid(&value, &schema), "seed {seed}: {text}");
    }
    assert!(n_ended > n / 2, "{n_ended} of {n} answers ended");
}
