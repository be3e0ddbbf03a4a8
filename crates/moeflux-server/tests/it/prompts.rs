//! Completions: texts, tokens, several of them, and what comes back of a prompt.

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
    let part = |event: &crate::client::Event| {
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
