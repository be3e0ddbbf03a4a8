//! Completions of one or several texts or token lists, and the returned parts of a prompt.

use serde_json::{Value as Json, json};

use crate::server::Running;

const PATH: &str = "/v1/completions";

#[test]
fn a_text_and_its_tokens_are_the_same_prompt() {
    let server = Running::new();
    let text = "The Rust standard library";
    let tokens = server.post("/tokenize", &json!({"prompt": text})).success();
    assert_eq!(tokens["count"], tokens["tokens"].as_array().unwrap().len());
    let answer = |prompt: &Json, stream: bool| {
        let body = json!({"prompt": prompt, "temperature": 0, "stream": stream});
        server.post(PATH, &body)
    };
    let by_text = answer(&json!(text), false).success();
    let by_tokens = answer(&tokens["tokens"], false).success();
    assert_eq!(by_text["choices"], by_tokens["choices"]);
    assert_eq!(by_text["usage"]["prompt_tokens"], tokens["count"]);
    assert!(by_text["usage"]["completion_tokens"].as_u64().unwrap() <= 16);
    let events = answer(&json!(text), true).events();
    let part = |event: &crate::client::SseEvent| {
        event.json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let streamed: String = events[..events.len() - 1].iter().map(part).collect();
    assert_eq!(by_text["choices"][0]["text"], streamed);
}

#[test]
fn prompts_are_answered_in_their_order() {
    let server = Running::with(|wanted| wanted.options.n_queue = 2);
    let words = ["A vector", "A string", "The heap", "A trait", "An iterator", "A closure"];
    let prompts: Vec<String> = (0..3).flat_map(|_| words).map(str::to_owned).collect();
    let body = json!({"prompt": prompts, "n": 2, "temperature": 0, "max_tokens": 6});
    let found = server.post(PATH, &body).success();
    let choices = found["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 36);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        let same = &choices[index % 12 / 2 * 2]["text"];
        assert_eq!(&choice["text"], same, "answer {index}");
    }
    let body = json!({"prompt": words[3], "temperature": 0, "max_tokens": 6});
    let alone = server.post(PATH, &body).success();
    assert_eq!(alone["choices"][0]["text"], choices[6]["text"]);
}

#[test]
fn an_echo_has_the_scores_of_its_tokens() {
    let server = Running::new();
    let text = "A vector is a contiguous growable array: \u{e9}\u{4e2d}.";
    let body = |more: &Json| {
        let mut body = json!({"prompt": text, "echo": true, "temperature": 0});
        for (key, value) in more.as_object().unwrap() {
            body[key.as_str()] = value.clone();
        }
        body
    };
    let found = server.post(PATH, &body(&json!({"logprobs": 2, "max_tokens": 0}))).success();
    let choice = &found["choices"][0];
    assert_eq!(choice["text"], text);
    let table = |key: &str| choice["logprobs"][key].as_array().unwrap().clone();
    let (tokens, logprobs) = (table("tokens"), table("token_logprobs"));
    let n_tokens = found["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!((tokens.len() as u64, logprobs.len() as u64), (n_tokens, n_tokens));
    assert!(logprobs[0].is_null() && logprobs[1..].iter().all(Json::is_number), "{found}");
    assert_eq!(found["usage"]["completion_tokens"], 0);
    let with_answer = server.post(PATH, &body(&json!({"logprobs": 2, "max_tokens": 4}))).success();
    let longer = &with_answer["choices"][0];
    assert!(longer["text"].as_str().unwrap().starts_with(text));
    assert_eq!(
        longer["logprobs"]["token_logprobs"].as_array().unwrap()[1..logprobs.len()],
        logprobs[1..]
    );
    let plain = server.post(PATH, &body(&json!({"max_tokens": 4}))).success();
    assert_eq!(plain["choices"][0]["text"], longer["text"]);
    let events = server.post(PATH, &body(&json!({"logprobs": 2, "max_tokens": 4, "stream": true})));
    let mut streamed = (String::new(), Vec::new());
    for event in &events.events() {
        if event.data != "[DONE]" {
            let choice = &event.json()["choices"][0];
            streamed.0 += choice["text"].as_str().unwrap();
            let logprobs = choice["logprobs"]["token_logprobs"].as_array();
            streamed.1.extend(logprobs.into_iter().flatten().cloned());
        }
    }
    assert_eq!(longer["text"], streamed.0);
    assert_eq!(longer["logprobs"]["token_logprobs"], Json::from(streamed.1));
}

/// A request of lm-eval for the likelihood of a text: one token is sampled, and the client leaves
/// out the last column. Where that token ends the answer, it has a column all the same.
#[test]
fn the_token_that_ends_an_answer_has_a_column() {
    let server = Running::new();
    let end = server.text.end_tokens()[0];
    let mut body = json!({"prompt": "A vector", "echo": true, "logprobs": 1, "max_tokens": 1,
        "temperature": 0, "logit_bias": {end.0.to_string(): 1e6}});
    let table = |body: &Json| {
        let found = server.post(PATH, body).success();
        let choice = &found["choices"][0];
        let table = choice["logprobs"].clone();
        for column in ["tokens", "top_logprobs", "text_offset"] {
            let n_columns = table["token_logprobs"].as_array().unwrap().len();
            assert_eq!(table[column].as_array().unwrap().len(), n_columns, "{column}");
        }
        (table, choice["text"].clone(), choice["finish_reason"].clone())
    };
    let (ended, text, finish) = table(&body);
    assert_eq!((text, finish), (json!("A vector"), json!("stop")));
    let n_prompt =
        server.post("/tokenize", &json!({"prompt": "A vector"})).success()["count"].clone();
    let logprobs = ended["token_logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len() as u64, n_prompt.as_u64().unwrap() + 1);
    let name = server.text.tokenizer().token_text(end).unwrap();
    assert_eq!(ended["tokens"].as_array().unwrap().last().unwrap(), &json!(name));
    // As many as where the answer is cut, and the same ones.
    body["logit_bias"] = server.endless();
    let (cut, ..) = table(&body);
    let of_prompt = logprobs.len() - 1;
    assert_eq!(cut["token_logprobs"].as_array().unwrap()[..of_prompt], logprobs[..of_prompt]);
    assert_eq!(cut["token_logprobs"].as_array().unwrap().len(), logprobs.len());
    // The score of the end token in a prompt of the same tokens.
    let mut tokens =
        server.post("/tokenize", &json!({"prompt": "A vector"})).success()["tokens"].clone();
    tokens.as_array_mut().unwrap().push(end.0.into());
    let (read, ..) =
        table(&json!({"prompt": tokens, "echo": true, "logprobs": 1, "max_tokens": 0}));
    let (read, sampled) = (&read["token_logprobs"][of_prompt], &logprobs[of_prompt]);
    let difference = read.as_f64().unwrap() - sampled.as_f64().unwrap();
    assert!(difference.abs() < 1e-3, "{read} {sampled}");
}

#[test]
fn every_token_that_was_sampled_has_a_column() {
    let server = Running::new();
    let bodies = [
        json!({"prompt": "A vector is", "max_tokens": 40}),
        json!({"prompt": "A vector is", "max_tokens": 40, "stop": [" a"]}),
        json!({"prompt": "A vector is", "max_tokens": 3}),
        json!({"prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
            "max_tokens": 200}),
    ];
    for mut body in bodies {
        body["temperature"] = json!(0);
        body["logprobs"] = json!(0);
        for n_tokens_max in [None, Some(1), Some(2)] {
            if let Some(n_tokens_max) = n_tokens_max {
                body["max_tokens"] = n_tokens_max.into();
            }
            let whole = server.post(PATH, &body).success();
            let choice = &whole["choices"][0];
            let n_columns = choice["logprobs"]["tokens"].as_array().unwrap().len() as u64;
            let n_answer = whole["usage"]["completion_tokens"].as_u64().unwrap();
            let is_ended = choice["finish_reason"] == "stop" && body["stop"].is_null();
            assert_eq!(n_columns, n_answer + u64::from(is_ended), "{body} {whole}");
            body["stream"] = true.into();
            let events = server.post(PATH, &body).events();
            body["stream"] = false.into();
            let chunks = events.iter().filter(|event| event.data != "[DONE]");
            let columns = |key: &str| -> Vec<Json> {
                let of = |event: &crate::client::SseEvent| {
                    event.json()["choices"][0]["logprobs"][key].as_array().unwrap().clone()
                };
                chunks.clone().flat_map(of).collect()
            };
            for key in ["tokens", "token_logprobs", "text_offset"] {
                assert_eq!(choice["logprobs"][key], Json::from(columns(key)), "{key} {body}");
            }
        }
    }
}

/// In the other dialects it follows the tokens of the text.
#[test]
fn the_token_that_ends_a_message_is_listed() {
    let server = Running::new();
    let end = server.text.end_tokens()[0];
    let name = server.text.tokenizer().token_text(end).unwrap();
    let bias = json!({end.0.to_string(): 1e6});
    let messages = crate::server::question();
    let body = json!({"messages": messages, "logprobs": true, "logit_bias": bias, "max_tokens": 5});
    let found = server.post("/v1/chat/completions", &body).success();
    let listed = found["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!((listed.len(), &listed[0]["token"]), (1, &json!(name)), "{found}");
    let mut body = json!({"messages": messages, "logprobs": true, "temperature": 0});
    let found = server.post("/v1/chat/completions", &body).success();
    let listed = found["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let last = listed.last().unwrap()["token"].as_str().unwrap();
    assert!(["<|im_end|>", "<|endoftext|>"].contains(&last), "{found}");
    body["stream"] = true.into();
    let events = server.post("/v1/chat/completions", &body).events();
    let tokens = events.iter().filter(|event| event.data != "[DONE]").flat_map(|event| {
        let listed = event.json()["choices"][0]["logprobs"]["content"].clone();
        listed.as_array().cloned().unwrap_or_default()
    });
    assert_eq!(tokens.collect::<Vec<_>>(), *listed);
}

/// An answer that is cut inside a character ends before it.
#[test]
fn no_text_ends_inside_a_character() {
    let server = Running::new();
    let tokens = server.post("/tokenize", &json!({"content": "\u{1f980}", "add_special": false}));
    let tokens = tokens.success()["tokens"].as_array().unwrap().clone();
    assert!(tokens.len() > 1, "the character has several tokens");
    let bias = json!({tokens[0].to_string(): 1e6});
    for (path, key, prompt) in [
        (PATH, "prompt", json!("A")),
        ("/v1/chat/completions", "messages", crate::server::question()),
        ("/v1/messages", "messages", crate::server::question()),
        ("/v1/responses", "input", json!("A")),
    ] {
        let mut body =
            json!({key: prompt, "logit_bias": bias, "max_tokens": 1, "max_output_tokens": 1});
        for is_streamed in [false, true] {
            body["stream"] = is_streamed.into();
            let found = server.post(path, &body);
            assert_eq!(found.status, 200, "{}", found.text());
            assert!(!found.text().contains('\u{fffd}'), "{path}: {}", found.text());
            assert!(!found.text().contains("\\ufffd"), "{path}: {}", found.text());
        }
    }
}

/// Each answer repeats all scores of its prompt.
#[test]
fn scores_of_a_prompt_have_a_limit() {
    let server = Running::new();
    let body = |n: usize| {
        let prompt = vec![1; 1_000];
        json!({"prompt": prompt, "echo": true, "logprobs": 20, "max_tokens": 0, "n": n})
    };
    let refused = server.post(PATH, &body(48));
    assert_eq!(refused.status, 400);
    let error = &refused.json()["error"];
    assert_eq!(error["param"], "logprobs");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("1008000 log-probabilities"), "{message}");
    assert!(message.contains("the limit is 1000000"), "{message}");
    server.post(PATH, &body(1)).success();
}
