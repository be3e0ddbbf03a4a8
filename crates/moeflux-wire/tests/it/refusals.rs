//! Unsupported fields of each dialect: errors name the field, in the dialect's shape.

use moeflux_wire::{Failure, FailureKind, messages};
use serde_json::{Value as Json, json};

use crate::dialects::parse;

/// One tool too many.
fn many(tool: &Json) -> Vec<Json> {
    vec![tool.clone(); 1_025]
}

#[track_caller]
fn check(api: &str, basis: &Json, cases: &[(Json, &str)]) {
    parse(api, basis.to_string().as_bytes()).unwrap();
    for (more, expected) in cases {
        let mut body = basis.clone();
        for (key, value) in more.as_object().unwrap() {
            body[key.as_str()] = value.clone();
        }
        let found = parse(api, body.to_string().as_bytes()).map(|_| ()).unwrap_err().message;
        assert!(found.starts_with(expected), "{more}\n  expected {expected}\n  got {found}");
    }
}

#[test]
fn chat_completions() {
    let basis = json!({"model": "m", "messages": [{"role": "user", "content": "?"}]});
    let said = |message: Json| json!({"messages": [{"role": "user", "content": "?"}, message]});
    let part = |part: Json| said(json!({"role": "user", "content": [part]}));
    let function = json!({"type": "function", "function": {"name": "f"}});
    let cases = [
        (json!({"messages": []}), "`messages`: is empty"),
        (json!({"messages": null}), "`messages`: is missing"),
        (json!({"n": 0}), "`n`: expected a whole number from 1 to 128, got 0"),
        (json!({"n": 129}), "`n`: expected a whole number from 1 to 128, got 129"),
        (json!({"n": 1e9}), "`n`: expected a whole number from 1 to 128, got 1000000000.0"),
        (json!({"n": 1.5}), "`n`: expected a whole number from 1 to 128, got 1.5"),
        (json!({"max_tokens": -5}), "`max_tokens`: expected a whole number from 1 to 2147483648"),
        (json!({"max_completion_tokens": 0}), "`max_completion_tokens`: expected a whole number"),
        (json!({"logprobs": true, "top_logprobs": 21}), "`top_logprobs`: expected a whole number"),
        (json!({"top_logprobs": 1}), "`top_logprobs`: needs `logprobs`: true"),
        (json!({"stop": vec!["x"; 17]}), "`stop`: 17 stop strings are too many; the limit is 16"),
        (json!({"tool_choice": "required"}), "`tool_choice`: needs `tools`"),
        (json!({"tool_choice": function}), "`tool_choice.function.name`: `f` is not one of the"),
        (json!({"parallel_tool_calls": 1}), "`parallel_tool_calls`: expected true or false"),
        (json!({"response_format": {"type": "xml"}}), "`response_format.type`: `xml` is not"),
        (json!({"response_format": "json"}), "`response_format`: expected an object, got a string"),
        (json!({"grammar": "root ::= x"}), "`grammar`: is GBNF"),
        (json!({"json_schema": {"type": "object"}}), "`json_schema`: is not supported: use"),
        (json!({"max_thinking_tokens": -1}), "`max_thinking_tokens`: expected a whole number"),
        (json!({"thinking_budget": "x"}), "`thinking_budget`: expected a whole number from 0"),
        (json!({"reasoning_effort": 5}), "`reasoning_effort`: expected a string, got 5"),
        (
            json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}),
            "`response_format.type`: cannot be combined with `guided_regex`",
        ),
        (
            json!({"response_format": {"type": "json_object"}, "tool_choice": "required",
                "tools": [{"type": "function", "function": {"name": "f"}}]}),
            "`tool_choice`: forces a call, which cannot be combined with `response_format.type`",
        ),
        (json!({"audio": {"voice": "x"}}), "`audio`: is not supported"),
        (json!({"modalities": ["text", "audio"]}), "`modalities[1]`: is not supported"),
        (json!({"web_search_options": {"x": 1}}), "`web_search_options`: is not supported"),
        (json!({"functions": [{"name": "f"}]}), "`functions`: is not supported: use `tools`"),
        (json!({"continue_final_message": true}), "`continue_final_message`: the last message is"),
        (said(json!({"role": "critic", "content": ""})), "`messages[1].role`: `critic` is not"),
        (said(json!({"role": "tool", "content": "x"})), "`messages[1].tool_call_id`: is missing"),
        (part(json!({"type": "image_url"})), "`messages[1].content[0].type`: `image_url` is not"),
        (part(json!({"type": "input_audio"})), "`messages[1].content[0].type`: `input_audio` is"),
        (part(json!({"type": "file"})), "`messages[1].content[0].type`: `file` is not supported"),
        (
            json!({"chat_template_kwargs": {"tools": []}}),
            "`chat_template_kwargs.tools`: is set from the conversation",
        ),
        (json!({"logit_bias": {"a\nb": 1}}), "`logit_bias.a b`: is not the id of a token"),
        (json!({"tools": [{"type": "mcp"}]}), "`tools[0].type`: `mcp` is not supported"),
        (json!({"tools": many(&function)}), "`tools`: 1025 tools are too many; the limit is 1024"),
        (
            json!({"tools": [function], "tool_choice": {"type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": many(&function)}}}),
            "`tool_choice.allowed_tools.tools`: 1025 tools are too many; the limit is 1024",
        ),
        (json!({"add_special_tokens": true}), "`add_special_tokens`: is not supported"),
        (
            json!({"add_generation_prompt": true, "continue_final_message": true,
                "messages": [{"role": "assistant", "content": "A"}]}),
            "`add_generation_prompt`: cannot be combined with `continue_final_message`",
        ),
    ];
    check("chat_completions", &basis, &cases);
}

#[test]
fn completions() {
    let cases = [
        (json!({"prompt": null}), "`prompt`: is missing"),
        (json!({"prompt": ""}), "`prompt`: is empty"),
        (json!({"prompt": []}), "`prompt`: is empty"),
        (json!({"prompt": ["a", ""]}), "`prompt`: is empty"),
        (json!({"prompt": [[]]}), "`prompt`: is empty"),
        (json!({"prompt": [1, "a"]}), "`prompt[1]`: expected the id of a token, got a string"),
        (json!({"prompt": [[1, -1]]}), "`prompt[0][1]`: expected the id of a token, got -1"),
        (json!({"prompt": ["a", 1]}), "`prompt[1]`: expected a string or a list of ids"),
        (json!({"prompt": vec!["a"; 1_025]}), "`prompt`: 1025 prompts are too many; the limit is"),
        (json!({"prompt": vec!["a"; 9], "n": 128}), "`n`: 1152 answers in all are too many; the"),
        (json!({"suffix": "x"}), "`suffix`: is not supported"),
        (json!({"response_format": {"type": "x"}}), "`response_format.type`: `x` is not supported"),
        (
            json!({"guided_choice": "a"}),
            "`guided_choice`: expected a list of strings, got a string",
        ),
        (
            json!({"grammar": "start: \"a\"", "structured_outputs": {"regex": "a"}}),
            "`structured_outputs.regex`: cannot be combined with `grammar`",
        ),
        (json!({"best_of": 2}), "`best_of`: is not supported: use `n`"),
        (json!({"logprobs": true}), "`logprobs`: expected a whole number from 0 to 20, got true"),
        (json!({"max_tokens": -1}), "`max_tokens`: expected a whole number from 0 to"),
    ];
    check("completions", &json!({"prompt": "a"}), &cases);
}

#[test]
fn responses() {
    let item = |item: Json| json!({"input": [item]});
    let image = json!({"role": "user", "content": [{"type": "input_image"}]});
    let output = json!({"type": "function_call_output", "call_id": "c",
        "output": [{"type": "input_image"}]});
    let function = json!({"type": "function", "name": "f"});
    let group =
        |n: usize| json!({"type": "namespace", "name": "g", "tools": vec![function.clone(); n]});
    let more_tools = json!({"type": "additional_tools", "tools": [group(600)]});
    let cases = [
        (json!({"input": null}), "`input`: is missing"),
        (json!({"input": []}), "`input`: is empty"),
        (json!({"previous_response_id": "resp_1"}), "`previous_response_id`: is not supported"),
        (json!({"conversation": "conv_1"}), "`conversation`: is not supported"),
        (json!({"background": true}), "`background`: is not supported"),
        (json!({"prompt": {"id": "pmpt_1"}}), "`prompt`: is not supported"),
        (json!({"truncation": "auto"}), "`truncation`: `auto` is not supported"),
        (json!({"text": {"format": {"type": "json_schema"}}}), "`text.format.schema`: is missing"),
        (json!({"text": {"format": {"type": "x"}}}), "`text.format.type`: `x` is not supported"),
        (json!({"response_format": {"type": "text"}}), "`response_format`: is not supported: use"),
        (json!({"tool_choice": {"type": "web_search"}}), "`tool_choice.type`: `web_search` is not"),
        (json!({"tool_choice": "required"}), "`tool_choice`: needs `tools`"),
        (
            json!({"tool_choice": "required", "tools": [{"type": "web_search"}]}),
            "`tool_choice`: needs `tools`",
        ),
        (
            json!({"tool_choice": {"type": "custom", "name": "f"}}),
            "`tool_choice.name`: `f` is not one of the `tools`",
        ),
        (json!({"reasoning": {"effort": 1}}), "`reasoning.effort`: expected a string, got 1"),
        (item(image), "`input[0].content[0].type`: `input_image` is not supported"),
        (item(output), "`input[0].output[0].type`: `input_image` is not supported"),
        (item(json!({"type": "item_reference", "id": "x"})), "`input[0].type`: is not supported"),
        (item(json!({"type": "compaction"})), "`input[0].type`: `compaction` is not supported"),
        (item(json!({"type": "reasoning"})), "`input`: is empty"),
        (json!({"tools": many(&function)}), "`tools`: 1025 tools are too many; the limit is 1024"),
        (json!({"tools": [group(1_025)]}), "`tools[0].tools`: 1025 tools are too many; the limit"),
        (json!({"tools": [group(600), group(600)]}), "`tools`: 1200 tools are too many; the limit"),
        (
            json!({"tools": [group(600)], "input": [more_tools]}),
            "`input[0].tools`: 1200 tools are too many; the limit is 1024",
        ),
    ];
    check("responses", &json!({"input": "a"}), &cases);
}

#[test]
fn messages_of_anthropic() {
    let basis = json!({"max_tokens": 9, "messages": [{"role": "user", "content": "?"}]});
    let tool = json!({"name": "f"});
    let block = |block: Json| json!({"messages": [{"role": "user", "content": [block]}]});
    let schema = json!({"type": "json_schema", "schema": {"type": "object"}});
    let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]});
    let cases = [
        (json!({"max_tokens": null}), "`max_tokens`: is missing"),
        (json!({"tools": many(&tool)}), "`tools`: 1025 tools are too many; the limit is 1024"),
        (json!({"messages": []}), "`messages`: is empty"),
        (json!({"thread": {"type": "create"}}), "`thread`: is not supported"),
        (json!({"container": "c"}), "`container`: is not supported"),
        (json!({"mcp_servers": [{}]}), "`mcp_servers`: is not supported"),
        (
            json!({"output_config": {"format": {"type": "json_schema"}}}),
            "`output_config.format.schema`: is missing",
        ),
        (json!({"output_format": {"type": "x"}}), "`output_format.type`: `x` is not supported"),
        (json!({"output_config": {"effort": 1}}), "`output_config.effort`: expected a string"),
        (
            json!({"output_config": {"format": schema}, "output_format": schema}),
            "`output_config.format.schema`: cannot be combined with `output_format.schema`",
        ),
        (json!({"response_format": {"type": "text"}}), "`response_format`: is not supported: use"),
        (json!({"tool_choice": {"type": "any"}}), "`tool_choice.type`: needs `tools`"),
        (
            json!({"tool_choice": {"type": "tool", "name": "f"}}),
            "`tool_choice.name`: `f` is not one of the `tools`",
        ),
        (
            json!({"tool_choice": {"type": "any"}, "tools": [{"name": "f"}],
                "output_format": schema}),
            "`tool_choice`: forces a call, which cannot be combined with `output_format.schema`",
        ),
        (json!({"thinking": {"type": "on"}}), "`thinking.type`: `on` is not supported"),
        (
            json!({"thinking": {"type": "enabled", "budget_tokens": 0}}),
            "`thinking.budget_tokens`: expected a whole number from 1",
        ),
        (
            block(json!({"type": "image"})),
            "`messages[0].content[0].type`: `image` is not supported",
        ),
        (block(json!({"type": "document"})), "`messages[0].content[0].type`: `document` is not"),
        (block(result), "`messages[0].content[0].content[0].type`: `image` is not supported"),
    ];
    check("messages", &basis, &cases);
    // This is the only refusal that makes the SDK send the whole history.
    let body = json!({"max_tokens": 9, "messages": [], "thread": {"type": "create"}});
    let failure = messages::parse(body.to_string().as_bytes()).unwrap_err();
    assert_eq!(failure.kind, FailureKind::Threads);
    let error = &failure.anthropic()["error"];
    assert_eq!(error["details"]["error_code"], "thread_unsupported_request");
}

#[test]
fn shapes_of_failures() {
    let failure = Failure::invalid("messages[0].role", "is missing");
    let error = json!({"message": "`messages[0].role`: is missing", "code": null,
        "type": "invalid_request_error", "param": "messages[0].role"});
    assert_eq!(failure.openai(), json!({"error": error}));
    let error =
        json!({"type": "invalid_request_error", "message": "`messages[0].role`: is missing"});
    let expected = json!({"type": "error", "error": error, "request_id": null});
    assert_eq!(failure.anthropic(), expected);
    for (kind, status, openai, anthropic) in [
        (FailureKind::ContextLength, 400, "invalid_request_error", "invalid_request_error"),
        (FailureKind::Unauthorized, 401, "authentication_error", "authentication_error"),
        (FailureKind::Forbidden, 403, "permission_error", "permission_error"),
        (FailureKind::NotFound, 404, "invalid_request_error", "not_found_error"),
        (FailureKind::MethodNotAllowed, 405, "invalid_request_error", "invalid_request_error"),
        (FailureKind::TooLarge, 413, "invalid_request_error", "request_too_large"),
        (FailureKind::MediaType, 415, "invalid_request_error", "invalid_request_error"),
        (FailureKind::TooMany, 429, "rate_limit_error", "rate_limit_error"),
        (FailureKind::Internal, 500, "server_error", "api_error"),
        (FailureKind::Unavailable, 503, "server_error", "overloaded_error"),
    ] {
        let failure = Failure::new(kind, "x");
        assert_eq!(kind.status(), status);
        assert_eq!(failure.openai()["error"]["type"], openai);
        assert_eq!(failure.anthropic()["error"]["type"], anthropic);
    }
    let failure = Failure::too_long(5_000, 100, 4_096);
    assert_eq!(failure.openai()["error"]["code"], "context_length_exceeded");
    let expected = "prompt is too long: 5100 tokens > 4096 maximum: this model's maximum context \
                    length is 4096 tokens, and the request has 5000 in the prompt and 100 for the \
                    answer";
    assert_eq!(failure.message, expected);
}
