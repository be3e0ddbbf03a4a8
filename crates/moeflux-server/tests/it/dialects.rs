//! Each dialect, plain and streamed: one answer in all of them.

use serde_json::{Value as Json, json};

use crate::server::{NAME, Running, question};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn chat(more: &Json) -> Json {
    merged(json!({"model": "any", "messages": question(), "temperature": 0}), more)
}

fn merged(mut body: Json, more: &Json) -> Json {
    for (key, value) in more.as_object().unwrap() {
        body[key.as_str()] = value.clone();
    }
    body
}

#[test]
fn chat_completions_plain_and_streamed_agree() {
    let server = Running::new();
    let plain = server.post(CHAT, &chat(&json!({"max_tokens": 200}))).success();
    let message = &plain["choices"][0]["message"];
    let text = message["content"].as_str().unwrap();
    assert!(text.len() > 20, "{plain}");
    assert_eq!(plain["model"], NAME);
    let options = json!({"stream": true, "stream_options": {"include_usage": true},
        "max_tokens": 200});
    let response = server.post(CHAT, &chat(&options));
    assert_eq!(response.header("cache-control"), Some("no-cache"));
    assert_eq!(response.header("x-accel-buffering"), Some("no"));
    let events = response.events();
    assert_eq!(events.last().unwrap().data, "[DONE]");
    let chunks: Vec<Json> = events[..events.len() - 1].iter().map(|it| it.json()).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let part = |key: &str| -> String {
        let deltas = chunks.iter().map(|it| it["choices"][0]["delta"][key].as_str());
        deltas.flatten().collect()
    };
    assert_eq!(part("content"), text);
    let thoughts = message["reasoning_content"].as_str().unwrap_or_default();
    assert_eq!(part("reasoning_content"), thoughts);
    let usage = &chunks.last().unwrap()["usage"];
    for key in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert_eq!(usage[key], plain["usage"][key], "{key}");
    }
    let finish = |chunk: &Json| chunk["choices"][0]["finish_reason"].clone();
    assert_eq!(finish(&chunks[chunks.len() - 2]), finish(&plain));
}

#[test]
fn several_answers_differ_and_are_all_there() {
    let server = Running::new();
    let options = json!({"n": 3, "temperature": 8, "seed": 7, "max_tokens": 24,
        "logit_bias": server.endless()});
    let found = server.post(CHAT, &chat(&options)).success();
    let choices = found["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    assert_ne!(choices[0]["message"], choices[1]["message"]);
    assert!(choices.iter().all(|choice| choice["finish_reason"] == "length"));
    assert_eq!(found["usage"]["completion_tokens"], 72);
    let again = server.post(CHAT, &chat(&options)).success();
    assert_eq!(again["choices"], found["choices"], "the seed decides");
    let events = server.post(CHAT, &chat(&merged(options, &json!({"stream": true})))).events();
    let mut texts = vec![String::new(); 3];
    for event in &events[..events.len() - 1] {
        let choice = &event.json()["choices"][0];
        let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
        texts[index] += choice["delta"]["content"].as_str().unwrap_or_default();
    }
    for (choice, text) in choices.iter().zip(texts) {
        assert_eq!(choice["message"]["content"], text);
    }
}

#[test]
fn without_a_seed_answers_differ() {
    let server = Running::new();
    let body = chat(&json!({"temperature": 8, "max_tokens": 24, "logprobs": true}));
    let answer = || server.post(CHAT, &body).success()["choices"][0]["logprobs"].clone();
    assert_ne!(answer(), answer());
}

#[test]
fn a_stop_string_ends_an_answer() {
    let server = Running::new();
    let whole = server.post(CHAT, &chat(&json!({"max_tokens": 200}))).success();
    let whole = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let word = whole.split_whitespace().nth(3).unwrap();
    let found = server.post(CHAT, &chat(&json!({"stop": word, "max_tokens": 200}))).success();
    assert_eq!(found["choices"][0]["message"]["content"], whole[..whole.find(word).unwrap()]);
    assert_eq!(found["choices"][0]["finish_reason"], "stop");
    let body = json!({"messages": question(), "temperature": 0, "stop_sequences": [word],
        "max_tokens": 200});
    let found = server.post(MESSAGES, &body).success();
    assert_eq!(
        (&found["stop_reason"], &found["stop_sequence"]),
        (&json!("stop_sequence"), &json!(word))
    );
}

#[test]
fn log_probabilities_are_those_of_the_tokens() {
    let server = Running::new();
    let options = json!({"logprobs": true, "top_logprobs": 3, "max_tokens": 100,
        "chat_template_kwargs": {"enable_thinking": false}});
    let found = server.post(CHAT, &chat(&options)).success();
    let choice = &found["choices"][0];
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let joined: String = tokens.iter().map(|it| it["token"].as_str().unwrap()).collect();
    // As in vLLM, the token that ended the answer comes last.
    let content = choice["message"]["content"].as_str().unwrap();
    assert_eq!(joined, format!("{content}<|im_end|>"));
    for token in tokens {
        assert_eq!(token["top_logprobs"].as_array().unwrap().len(), 3);
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"]);
    }
}

#[test]
fn responses_plain_and_streamed_agree() {
    let server = Running::new();
    let body = json!({"input": "What is a vector?", "temperature": 0, "max_output_tokens": 200});
    let plain = server.post(RESPONSES, &body).success();
    assert_eq!(plain["object"], "response");
    let events = server.post(RESPONSES, &merged(body, &json!({"stream": true}))).events();
    assert_eq!(events[0].name, "response.created");
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event.json()["sequence_number"], number);
        assert_eq!(event.json()["type"], event.name);
    }
    let last = events.last().unwrap().json();
    let texts = |response: &Json| -> Vec<Json> {
        let output = response["output"].as_array().unwrap();
        output.iter().map(|item| item["content"][0]["text"].clone()).collect()
    };
    assert_eq!(texts(&last["response"]), texts(&plain));
    let input_tokens = |response: &Json| response["usage"]["input_tokens"].clone();
    assert_eq!(input_tokens(&last["response"]), input_tokens(&plain));
}

#[test]
fn messages_plain_and_streamed_agree() {
    let server = Running::new();
    let body = json!({"messages": question(), "temperature": 0, "max_tokens": 200,
        "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let plain = server.post(MESSAGES, &body).success();
    let blocks = plain["content"].as_array().unwrap();
    assert!(!blocks.is_empty(), "{plain}");
    let events = server.post(MESSAGES, &merged(body, &json!({"stream": true}))).events();
    let names: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(names[0], "message_start");
    assert_eq!(names[names.len() - 2..], ["message_delta", "message_stop"]);
    let mut text = String::new();
    for event in &events {
        text += event.json()["delta"]["text"].as_str().unwrap_or_default();
    }
    assert_eq!(blocks.last().unwrap()["text"], text);
    let usage = &events[events.len() - 2].json()["usage"];
    assert_eq!(usage["output_tokens"], plain["usage"]["output_tokens"]);
    let total = |usage: &Json| {
        let count = |key: &str| usage[key].as_u64().unwrap();
        count("input_tokens") + count("cache_read_input_tokens")
    };
    assert_eq!(total(usage), total(&plain["usage"]));
    let body =
        json!({"messages": question(), "thinking": {"type": "enabled", "budget_tokens": 1024}});
    let counted = server.post("/v1/messages/count_tokens", &body).success();
    assert_eq!(counted["input_tokens"], total(usage));
}

#[test]
fn a_last_turn_of_the_assistant_goes_on() {
    let server = Running::new();
    let messages = json!([{"role": "user", "content": "What is a vector?"},
        {"role": "assistant", "content": "A vector is"}]);
    let body = json!({"messages": messages, "temperature": 0, "max_tokens": 8});
    let found = server.post(MESSAGES, &body).success();
    let text = found["content"][0]["text"].as_str().unwrap();
    assert!(!text.starts_with("A vector"), "{found}");
}

#[test]
fn offered_tools_are_in_the_prompt() {
    let server = Running::new();
    let tools = json!([{"type": "function", "function": {"name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]);
    let n_prompt_tokens = |options: &Json| {
        let found = server.post(CHAT, &chat(options)).success();
        found["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let without = n_prompt_tokens(&json!({"max_tokens": 1}));
    assert!(n_prompt_tokens(&json!({"max_tokens": 1, "tools": tools})) > without + 20);
    assert_eq!(
        n_prompt_tokens(&json!({"max_tokens": 1, "tools": tools, "tool_choice": "none"})),
        without
    );
}
