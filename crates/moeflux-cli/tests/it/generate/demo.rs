//! Asks the demo model held-out questions and requests, by greedy decoding on the CPU backend.
//!
//! Answers are judged as in `tools/demo-model/score.py`, which has the counts of the same weights
//! in PyTorch.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux::Model;
use moeflux::sample::SamplerConfig;
use moeflux::{Engine, Event, Message, ModelText, Session, TemplateOptions};
use serde_json::{Value, json};

use crate::support::{ModelDir, moeflux_in, stdout_in};

/// Right answers out of 20 that the model's card promises.
const N_RIGHT_MIN: usize = 16;

/// Room for any of these chats.
const CONTEXT: usize = 1024;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../moeflux-demo")
}

/// The model and a conversation with it.
struct DemoChat {
    session: Session,
    text: Arc<ModelText>,
}

impl DemoChat {
    fn open() -> Self {
        let model = Model::open(demo().join("model")).unwrap();
        let text = model.text().unwrap();
        let builder = Engine::builder(model).threads(NonZeroUsize::new(2).unwrap());
        let engine = builder.rows_per_step(NonZeroUsize::new(256).unwrap()).load().unwrap();
        Self { session: engine.session(CONTEXT).unwrap(), text }
    }

    /// The answer to a chat's first message.
    fn answer(&mut self, request: &str, tools: Option<Value>, n_tokens_max: usize) -> String {
        let options = TemplateOptions { tools, ..TemplateOptions::default() };
        let messages = [Message::new("user", request)];
        let prompt = self.text.chat_prompt_with(&messages, &options).unwrap();
        self.session.clear();
        let generation = self.text.generation(SamplerConfig::greedy(), n_tokens_max).unwrap();
        let mut answer = String::new();
        let listener = &mut |event: Event<'_>| {
            if let Event::Text(text) = event {
                answer.push_str(text);
            }
            ControlFlow::Continue(())
        };
        generation.with_special_text().run(&mut self.session, &prompt, listener).unwrap();
        answer
    }
}

fn cases(name: &str) -> Vec<Value> {
    let cases: Vec<Value> =
        serde_json::from_slice(&std::fs::read(demo().join(name)).unwrap()).unwrap();
    assert_eq!(cases.len(), 20, "{name}");
    cases
}

/// Counts the right answers, and lists the wrong ones.
fn check(name: &str, is_right: impl Fn(&mut DemoChat, &Value) -> Result<(), String>) {
    let mut chat = DemoChat::open();
    let mut failures = Vec::new();
    for case in cases(name) {
        failures.extend(is_right(&mut chat, &case).err());
    }
    let n_right = 20 - failures.len();
    println!("{name}: {n_right} of 20 right; wrong:\n{}", failures.join("\n"));
    assert!(n_right >= N_RIGHT_MIN, "{name}: {n_right} of 20:\n{}", failures.join("\n"));
}

#[test]
fn questions_in_phrasings_that_training_never_saw() {
    check("questions.json", |chat, case| {
        let question = case["question"].as_str().unwrap();
        let answer = chat.answer(question, None, 160).to_lowercase();
        let printed = answer.rsplit("</think>").next().unwrap_or_default();
        let accepted = case["accept"].as_array().unwrap();
        let is_right =
            accepted.iter().any(|it| printed.contains(&it.as_str().unwrap().to_lowercase()));
        is_right.then_some(()).ok_or_else(|| format!("{question}\n    {}", printed.trim()))
    });
}

#[test]
fn requests_that_a_tool_answers() {
    check("toolcalls.json", |chat, case| {
        let request = case["request"].as_str().unwrap();
        let answer = chat.answer(request, Some(case["tools"].clone()), 128);
        let (_, rest) = answer.split_once("<tool_call>").unwrap_or_default();
        let body = rest.split_once("</tool_call>").unwrap_or_default().0;
        let call: Value = serde_json::from_str(body).unwrap_or_default();
        let is_right = call["name"] == case["name"] && call["arguments"] == case["arguments"];
        is_right.then_some(()).ok_or_else(|| format!("{request}\n    {}", answer.trim()))
    });
}

#[test]
fn the_first_commands_need_no_model() {
    let cache = ModelDir::new();
    let page = stdout_in(&cache, &["inspect"]);
    assert!(page.starts_with("qwen3_5_moe\n1 file, 8.25 MB"), "{page}");
    let question = "What does Vec::push do?";
    let args = ["generate", "--chat", question, "--temp", "0"];
    assert_eq!(stdout_in(&cache, &args), "Appends an element to the back of a collection.\n");
    let all = stdout_in(&cache, &[&args[..], &["--special"]].concat());
    assert!(all.starts_with("<think>\n\n</think>\n\nAppends"), "{all}");
    let object: Value =
        serde_json::from_str(&stdout_in(&cache, &[&args[..], &["--json"]].concat())).unwrap();
    assert_eq!(object["text"], json!("Appends an element to the back of a collection."));

    let output = moeflux_in(&cache, &["inspect", "--bits", "4"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn every_command_that_takes_a_model_names_the_default() {
    for command in ["generate", "logits", "eval", "inspect"] {
        let help = stdout_in(&ModelDir::new(), &[command, "--help"]);
        let words: Vec<&str> = help.split_whitespace().collect();
        assert!(words.join(" ").contains("[default: the demo model]"), "{help}");
    }
}
