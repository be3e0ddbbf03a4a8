//! `generate --chat` with tools and schemas, on the demo model: calls, forms and refusals.

use std::process::Output;

use serde_json::{Value, json};

use crate::serving::ServerProcess;
use crate::support::{ModelDir, check_fails, moeflux};

const WEATHER: &str = "I'm flying out to Paris tomorrow, what's it like outside there?";
const CALL: &str = r#"{"name": "get_weather", "arguments": {"city": "Paris"}}"#;

fn function(name: &str, description: &str, properties: Value, required: &[&str]) -> Value {
    let parameters = json!({"type": "object", "properties": properties, "required": required});
    json!({"name": name, "description": description, "parameters": parameters})
}

/// As the model in the box knows them.
fn functions() -> Vec<Value> {
    let number = || json!({"type": "number"});
    let unit = json!({"type": "string", "enum": ["celsius", "fahrenheit"]});
    let weather = json!({"city": {"type": "string"}, "unit": unit});
    let sum = json!({"a": number(), "b": number()});
    vec![
        function("get_weather", "Get the weather of a city.", weather, &["city"]),
        function("add", "Add two numbers.", sum, &["a", "b"]),
    ]
}

fn tools() -> Value {
    functions().into_iter().map(|it| json!({"type": "function", "function": it})).collect()
}

fn schema() -> Value {
    let item = json!({"type": "object", "properties": {"colour": {"enum": ["red", "green"]},
        "share_of_all": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["colour", "share_of_all"], "additionalProperties": false});
    json!({"type": "array", "items": item, "minItems": 2, "maxItems": 2})
}

/// A folder with these files, by name.
fn folder(files: &[(&str, &Value)]) -> ModelDir {
    let dir = ModelDir::new();
    for (name, value) in files {
        std::fs::write(dir.file(name), value.to_string()).unwrap();
    }
    dir
}

/// A chat, where `@name` is a file of the folder.
fn args(dir: &ModelDir, more: &[&str]) -> Vec<String> {
    let path = |name| dir.file(name).to_str().unwrap().to_owned();
    let more = more.iter().map(|it| it.strip_prefix('@').map_or_else(|| (*it).to_owned(), path));
    ["generate", "--chat"].into_iter().map(str::to_owned).chain(more).collect()
}

fn run(args: &[String]) -> Output {
    moeflux(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn asked(dir: &ModelDir, more: &[&str]) -> String {
    let is_greedy = !more.contains(&"--temp");
    let greedy: &[&str] = if is_greedy { &["--temp", "0"] } else { &[] };
    let output = run(&args(dir, &[more, greedy].concat()));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), ""), "{more:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn object(dir: &ModelDir, more: &[&str]) -> Value {
    serde_json::from_str(&asked(dir, &[more, &["--json"]].concat())).unwrap()
}

#[test]
fn a_call_is_a_line_of_json() {
    let beside = |mut it: Value| {
        it["type"] = "function".into();
        it
    };
    let messages = json!([{"role": "user", "content": WEATHER}]);
    let dir = folder(&[
        ("tools", &tools()),
        ("object", &json!({"tools": tools()})),
        ("bare", &functions().into()),
        ("beside", &functions().into_iter().map(beside).collect()),
        ("none", &json!({"messages": messages, "tools": tools(), "tool_choice": "none"})),
        ("others", &json!({"messages": messages, "tools": [tools()[1]]})),
        ("whole", &json!({"messages": messages, "tools": tools()})),
    ]);
    for name in ["@tools", "@object", "@bare", "@beside"] {
        assert_eq!(asked(&dir, &[WEATHER, "--tools", name]), format!("{CALL}\n"), "{name}");
    }
    // An option takes precedence over the file of messages.
    for more in [
        &["--messages", "@whole"][..],
        &["--messages", "@others", "--tools", "@tools"],
        &["--messages", "@none", "--tool-choice", "required"],
    ] {
        assert_eq!(asked(&dir, more), format!("{CALL}\n"), "{more:?}");
    }
    let found = object(&dir, &[WEATHER, "--tools", "@tools"]);
    let call: Value = serde_json::from_str(CALL).unwrap();
    assert_eq!((&found["calls"], &found["text"]), (&json!([call]), &json!("")));
    assert_eq!(found["finish"], "end");
    let special = asked(&dir, &[WEATHER, "--tools", "@tools", "--special"]);
    assert!(special.contains("<tool_call>"), "{special}");
}

#[test]
fn a_choice_forces_a_call_or_forbids_it() {
    let dir = folder(&[("tools", &tools())]);
    let chosen = |question: &str, choice: &str| {
        object(&dir, &[question, "--tools", "@tools", "--tool-choice", choice])
    };
    let forbidden = chosen(WEATHER, "none");
    assert!(forbidden["calls"].is_null() && forbidden["text"] != "", "{forbidden}");
    let none = object(&dir, &[WEATHER]);
    assert_eq!(forbidden["tokens"], none["tokens"], "the model is not told of the tools");
    for choice in ["add", "required"] {
        let forced = chosen("What does Vec::push do?", choice);
        let calls = forced["calls"].as_array().unwrap();
        let is_whole = |call: &Value| match call["name"].as_str() {
            Some("add") => call["arguments"]["a"].is_number(),
            Some("get_weather") => choice == "required" && call["arguments"]["city"].is_string(),
            _ => false,
        };
        assert!(!calls.is_empty() && calls.iter().all(is_whole), "{forced}");
    }
}

#[test]
fn an_answer_follows_its_schema() {
    let dir = folder(&[("schema", &schema()), ("tools", &tools())]);
    let check = |text: &str| {
        let items: Value = serde_json::from_str(text).unwrap();
        assert_eq!(items.as_array().unwrap().len(), 2, "{text}");
        for item in items.as_array().unwrap() {
            let is_share = (1..=9).contains(&item["share_of_all"].as_i64().unwrap());
            assert!(is_share && ["red", "green"].contains(&item["colour"].as_str().unwrap()));
        }
    };
    let question = "Name two colours.";
    for seed in ["1", "2", "3"] {
        let more = ["--no-think", "--temp", "1", "--seed", seed, "-n", "2000"];
        check(&asked(&dir, &[&[question, "--schema", "@schema"], &more[..]].concat()));
    }
    let thought = asked(&dir, &[question, "--schema", "@schema", "--think", "-n", "1000"]);
    check(thought.rsplit("</think>").next().unwrap());
    assert!(thought.starts_with("<think>\n"), "{thought}");
    let output = run(&args(&dir, &[question, "--schema", "@schema", "--temp", "0", "-n", "9"]));
    let printed = "note: the answer was cut off, perhaps in the middle of JSON; \
                -n allows more tokens\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), printed);
    // Beside tools the answer is a call or the form.
    let both = ["--schema", "@schema", "--tools", "@tools"];
    assert_eq!(asked(&dir, &[&[WEATHER], &both[..]].concat()), format!("{CALL}\n"));
}

#[test]
fn tokens_that_are_forced_are_those_that_are_chosen() {
    let dir = folder(&[("schema", &schema()), ("tools", &tools())]);
    for more in [["--schema", "@schema"], ["--tools", "@tools"]] {
        let more = [&[WEATHER, "--no-think"], &more[..]].concat();
        let forced = object(&dir, &more);
        // With log-probabilities every token takes a step of its own.
        let chosen = object(&dir, &[&more[..], &["--logprobs", "0"]].concat());
        assert_eq!(forced["tokens"], chosen["tokens"], "{more:?}");
        assert_eq!(
            chosen["logprobs"].as_array().unwrap().len(),
            chosen["tokens"].as_array().unwrap().len()
        );
    }
}

#[test]
fn answers_are_those_of_the_server() {
    let dir = folder(&[("schema", &schema()), ("tools", &tools())]);
    let server = ServerProcess::start(&["--port", "0"], &[]);
    let schema = json!({"name": "s", "schema": schema()});
    let format = json!({"type": "json_schema", "json_schema": schema});
    let named = json!({"type": "function", "function": {"name": "add"}});
    for (more, body) in [
        (&["--tools", "@tools"][..], json!({"tools": tools()})),
        (
            &["--tools", "@tools", "--tool-choice", "add"],
            json!({"tools": tools(), "tool_choice": named}),
        ),
        (&["--schema", "@schema"], json!({"response_format": format})),
        (
            &["--schema", "@schema", "--tools", "@tools"],
            json!({"response_format": format, "tools": tools()}),
        ),
    ] {
        let here = object(&dir, &[&[WEATHER, "-n", "600", "--no-think"], more].concat());
        let mut body = body;
        body["messages"] = json!([{"role": "user", "content": WEATHER}]);
        body["temperature"] = 0.into();
        body["max_tokens"] = 600.into();
        body["reasoning_effort"] = "none".into();
        let there = server.json("POST /v1/chat/completions", &body);
        let message = &there["choices"][0]["message"];
        let n_tokens = here["tokens"].as_array().unwrap().len();
        assert_eq!(there["usage"]["completion_tokens"], n_tokens, "{here} {there}");
        let call = |call: &Value| {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            json!({"name": call["function"]["name"], "arguments": arguments})
        };
        let calls: Option<Vec<Value>> =
            message["tool_calls"].as_array().map(|calls| calls.iter().map(call).collect());
        assert_eq!(here["calls"], json!(calls), "{more:?}");
        let text = here["text"].as_str().unwrap();
        let printed = text.rsplit("</think>").next().unwrap().trim();
        assert_eq!(printed, message["content"].as_str().unwrap_or_default().trim(), "{more:?}");
    }
}

#[test]
fn a_call_that_was_cut_is_named_and_not_printed() {
    let dir = folder(&[("tools", &tools())]);
    let more = [WEATHER, "--tools", "@tools", "--no-think"];
    let n_tokens = object(&dir, &more)["tokens"].as_array().unwrap().len();
    // The call ends before its closing marker, which has a token or two.
    let n_tokens = (n_tokens - 6).to_string();
    let more = [&more[..], &["--temp", "0", "-n", &n_tokens]].concat();
    let output = run(&args(&dir, &more));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let printed =
        "note: an incomplete call of `get_weather` was not printed; -n allows more tokens\n";
    assert_eq!((output.status.code(), stderr.as_str()), (Some(0), printed));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "\n");
    let output = run(&args(&dir, &[&more[..], &["--json"]].concat()));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), printed);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["finish"], &found["calls"]), (&json!("length"), &Value::Null));
}

/// Checks that a command fails before it looks for a model, unless it needs one.
#[track_caller]
fn refused(dir: &ModelDir, more: &[&str], words: &[&str]) {
    let args = args(dir, &[&["x"], more].concat());
    check_fails(&args.iter().map(String::as_str).collect::<Vec<_>>(), words);
}

#[test]
fn files_without_tools_or_a_schema_are_refused_by_name() {
    let web = json!([{"type": "web_search"}]);
    let colours = json!({"schema": schema(), "name": "colours"});
    let dir = folder(&[
        ("number", &json!(5)),
        ("list", &json!([])),
        ("object", &json!({})),
        ("numbers", &json!([5])),
        ("nameless", &json!([{"type": "function", "function": {"description": "d"}}])),
        ("web", &web),
        ("deep", &(0..126).fold(json!([]), |inner, _| json!([inner]))),
        ("tools", &tools()),
        ("wrapped", &colours),
        ("not", &json!({"type": "object", "properties": {"a": {"not": {"const": 1}}}})),
        ("type", &json!({"type": "json_schema"})),
        (
            "asks",
            &json!({"messages": [], "response_format": {"type": "json_schema",
            "json_schema": {"name": "n", "schema": {"uniqueItems": true}}}}),
        ),
        (
            "chooses",
            &json!({"messages": [], "tools": tools(), "tool_choice": {"type": "function",
            "function": {"name": "other"}}}),
        ),
    ]);
    std::fs::write(dir.file("cut"), "[{\"type\": ").unwrap();
    std::fs::write(dir.file("bytes"), b"\"\xff\"").unwrap();
    for option in ["--tools", "--schema", "--messages"] {
        for (name, words) in
            [("@absent", "absent"), ("@cut", "is not JSON: EOF"), ("@bytes", "is not JSON")]
        {
            refused(&dir, &[option, name, "--model", "/nonexistent"], &[&name[1..], words]);
        }
    }
    let tools = |name, words| refused(&dir, &["--tools", name, "--model", "/nonexistent"], words);
    tools("@number", &["number", "is neither a list of tools"]);
    tools("@object", &["object", "is neither a list of tools"]);
    tools("@numbers", &["numbers", "`tools[0]`: expected an object, got 5"]);
    tools("@nameless", &["nameless", "`tools[0].function.name`: is missing"]);
    tools("@web", &["web", "`tools[0].type`: `web_search` is not supported"]);
    tools("@deep", &[]);
    refused(&dir, &["--messages", "@number"], &["number", "is neither a list of messages"]);
    refused(&dir, &["--messages", "@chooses"], &["chooses", "`other` is not one of the `tools`"]);
    for name in ["@number", "@list"] {
        refused(&dir, &["--schema", name, "--model", "/nonexistent"], &["expected an object"]);
    }
    refused(&dir, &["--schema", "@wrapped"], &["wrapped", "wraps the schema in `schema`"]);
    refused(&dir, &["--schema", "@not"], &["`not` at /properties/a/not cannot be enforced"]);
    refused(&dir, &["--schema", "@type"], &["type", "`type` at /type cannot be enforced"]);
    let words = ["asks", "`response_format.json_schema.schema`", "`uniqueItems`"];
    refused(&dir, &["--messages", "@asks"], &words);
}

#[test]
fn options_that_contradict_each_other_are_wrong_use() {
    let dir = folder(&[("tools", &tools()), ("schema", &schema())]);
    let schema = ["--schema", "@schema"];
    for (chat, more, words) in [
        (&["generate", "x"][..], &["--tools", "@tools"][..], "--chat"),
        (&["generate", "x"], &schema, "--chat"),
        (&["generate", "x"], &["--tool-choice", "none"], "--chat"),
        (&["generate", "x", "--chat", "--prefill", "["], &schema, "--prefill"),
        (
            &["generate", "x", "--chat"],
            &["--tools", "@tools", "--tool-choice", "other"],
            "--tool-choice: `other` is not one of the `tools`",
        ),
        (
            &["generate", "x", "--chat"],
            &["--tool-choice", "required"],
            "--tool-choice: needs `tools`",
        ),
        (
            &["generate", "x", "--chat", "--schema", "@schema"],
            &["--tools", "@tools", "--tool-choice", "add"],
            "--schema: a call is forced",
        ),
    ] {
        let path = |it: &&str| match it.strip_prefix('@') {
            Some(name) => dir.file(name).to_str().unwrap().to_owned(),
            None => (*it).to_owned(),
        };
        let args: Vec<String> = chat.iter().chain(more).map(path).collect();
        let output = run(&args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty() && stderr.contains(words), "{args:?}: {stderr}");
    }
}

#[test]
fn fields_of_a_tool_without_effect_are_reported() {
    let anthropic = json!([{"name": "f", "input_schema": {"type": "object"}}]);
    let dir = folder(&[("anthropic", &anthropic)]);
    let output = run(&args(&dir, &["x", "--tools", "@anthropic", "-n", "1"]));
    let stderr = String::from_utf8(output.stderr).unwrap();
    let printed = stderr.lines().next().unwrap();
    assert!(
        printed.starts_with("note: ") && printed.contains("anthropic: no effect here: "),
        "{printed}"
    );
    assert!(printed.ends_with(": tools[].function.input_schema"), "{printed}");
}
