//! A request through the demo model: the types of both sides fit, and the answer adds up.

use std::path::{Path, PathBuf};

use moeflux::step::{Feed, StepOutput, Wanted, step};
use moeflux::{Engine, Finish, Model, Session};
use moeflux_chat::Chat;
use moeflux_wire::{
    AnswerEvents, EventWriter, Prompt, Reason, Request, ResponseEvent, ResponseHead, Usage, chat,
};
use serde_json::Value as Json;

const CONTEXT: usize = 256;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-demo/model")
}

/// The events of a request's only answer.
fn events(request: &Request, chat: &Chat, session: &mut Session) -> Vec<ResponseEvent> {
    let Prompt::Chat(conversation, options) = &request.prompt else { panic!("a conversation") };
    let prompt = chat.ask(conversation, &request.rules, options).unwrap();
    let (text, tokens) = (chat.text(), &prompt.tokens);
    let config = request.sampling.over(text.sampling(7));
    let mut generation = text
        .generation(config, request.n_tokens_max.unwrap_or(CONTEXT))
        .unwrap()
        .with_stops(request.stops.clone());
    let usage = Usage { n_prompt_tokens: tokens.len(), ..Usage::default() };
    let mut answer = AnswerEvents::new(0, prompt.answer_with_ids("call_1_0"), usage);
    let mut events = vec![ResponseEvent::Begun {
        n_prompt_tokens: tokens.len(),
        n_cached_tokens: 0,
        n_cached_drive_tokens: 0,
    }];
    let n_best = generation.n_best_needed();
    let mut output = StepOutput::default();
    step(&mut [Feed::prompt(session, tokens).wanting(Wanted::Last).best(n_best)], &mut output)
        .unwrap();
    let finish: Finish = loop {
        let chosen = generation.accept(output.last_of(0).unwrap(), session).unwrap();
        let (token, logprob) = (chosen.choice.token, chosen.choice.logprob);
        if chosen.finish != Some(Finish::EndToken) {
            let score = (token, logprob, chosen.choice.top);
            events.extend(answer.chosen(text.tokenizer(), score, chosen.text));
        }
        if let Some(finish) = chosen.finish {
            break finish;
        }
        step(&mut [Feed::answer(session, &token).best(n_best)], &mut output).unwrap();
    };
    let reason = Reason::of(finish, generation.stopped()).unwrap();
    events.extend(answer.end(&generation.rest(), reason));
    events
}

/// The response to a body, and the number of tokens of prompt and answer in the session.
fn response(body: &str) -> (Json, usize) {
    let model = Model::open(demo()).unwrap();
    let chat_of_model = Chat::open(&model).unwrap();
    let engine = Engine::builder(model).context(CONTEXT).load().unwrap();
    let mut session = engine.session(CONTEXT).unwrap();
    let (request, options) = chat::parse(body.as_bytes()).unwrap();
    let head = ResponseHead { id: "1".into(), created_s: 0, model: "demo".into() };
    let mut writer = chat::ChatWriter::new(options, head);
    let mut out = Vec::new();
    for event in events(&request, &chat_of_model, &mut session) {
        writer.write(&event, &mut out);
    }
    (serde_json::from_slice(&out).unwrap(), session.tokens().len())
}

#[test]
fn an_answer_adds_up() {
    let body = r#"{"messages": [{"role": "user", "content": "What is a vector?"}],
        "temperature": 0, "logprobs": true, "top_logprobs": 2, "max_tokens": 48, "stop": ["zzz"]}"#;
    let (found, n_tokens) = response(body);
    let choice = &found["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.len() > 20 && !text.contains("think>"), "{found}");
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    let joined: String = tokens.iter().map(|it| it["token"].as_str().unwrap()).collect();
    assert_eq!(joined, text);
    for token in tokens {
        assert_eq!(token["top_logprobs"][0]["logprob"], token["logprob"], "greedy takes the best");
    }
    let usage = |key: &str| usize::try_from(found["usage"][key].as_u64().unwrap()).unwrap();
    let n_answer_tokens = usage("completion_tokens");
    // The last token of an answer that was cut is not fed.
    let n_unfed = usize::from(choice["finish_reason"] == "length");
    assert_eq!(n_tokens, usage("prompt_tokens") + n_answer_tokens - n_unfed);
    assert_eq!(usage("total_tokens"), usage("prompt_tokens") + n_answer_tokens);
    assert!(tokens.len() <= n_answer_tokens, "{found}");
}

#[test]
fn a_stop_string_is_named_and_not_shown() {
    let body = |stop: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "What is a vector?"}}],
                "temperature": 0, "max_tokens": 48{stop}}}"#
        )
    };
    let content =
        |found: &Json| found["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let (whole, _) = response(&body(""));
    let whole = content(&whole);
    let word = whole.split_whitespace().nth(3).unwrap();
    let (found, _) = response(&body(&format!(r#", "stop": ["{word}"]"#)));
    assert_eq!(content(&found), whole[..whole.find(word).unwrap()]);
    assert_eq!(found["choices"][0]["finish_reason"], "stop");
}
