//! The public face of the crate: handles that may move between threads, and the examples.

use std::ops::ControlFlow;

use moeflux::provider::config::EngineConfig;
use moeflux::provider::model::Model;
use moeflux::sample::{Sampler, SamplerConfig};
use moeflux::step::{Feed, StepOutput, StepUnderWay};
use moeflux::{
    ChatTemplate, Engine, EngineBuilder, Error, Event, Generation, Message, ModelText, Session,
    Snapshot, StopStrings, TextStream, Tokenizer,
};
use moeflux_testing::examples::printed;
use moeflux_testing::temp_dir::TempDir;

#[test]
fn handles_may_be_sent() {
    fn is_send<T: Send>() {}
    is_send::<Engine>();
    is_send::<EngineBuilder>();
    is_send::<EngineConfig>();
    is_send::<Session>();
    is_send::<Feed<'_>>();
    is_send::<Snapshot>();
    is_send::<StepOutput>();
    is_send::<StepUnderWay<'_, '_>>();
    is_send::<ModelText>();
    is_send::<Generation<'_>>();
    is_send::<Sampler>();
    is_send::<Tokenizer>();
    is_send::<TextStream<'_>>();
    is_send::<StopStrings>();
    is_send::<ChatTemplate>();
    is_send::<Error>();
    fn is_sync<T: Sync>() {}
    is_sync::<Engine>();
    is_sync::<ModelText>();
}

#[test]
fn examples_give_the_same_answer_in_every_way() {
    let answer = printed("answer");
    let answer = answer.trim_end();
    assert!(answer.contains("trait"), "{answer}");
    assert_eq!(printed("stream").trim_end(), answer);
    assert_eq!(printed("under_tokio"), format!("{answer}\n[end]\n"));
    let together = printed("many_sessions");
    assert!(together.starts_with(&format!("What is a trait object?\n{answer}\n")), "{together}");
    assert_eq!(together.matches("\n\n").count(), 3, "{together}");
}

#[test]
fn a_constrained_answer_is_one_of_its_choices() {
    let answer = printed("constrained");
    assert!(["yes\n", "no\n"].contains(&answer.as_str()), "{answer}");
}

/// Each answer is the same as alone, regardless of the history of its conversation.
#[test]
fn conversations_in_shared_steps_answer_as_alone() {
    let root = TempDir::new();
    let model = Model::open(moeflux_demo::unpack(root.path()).unwrap()).unwrap();
    let text = model.text().unwrap();
    let engine = Engine::builder(model).load().unwrap();
    let alone = |question: &str| {
        let prompt = text.chat_prompt(&[Message::new("user", question)]).unwrap();
        let generation = text.generation(SamplerConfig::greedy(), 24).unwrap();
        let mut session = engine.session(1024).unwrap();
        let mut answer = String::new();
        generation
            .run(&mut session, &prompt, &mut |event| {
                if let Event::Text(text) = event {
                    answer.push_str(text);
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        answer.replace('\n', " ")
    };
    let printed = printed("conversations");
    let answers: Vec<&str> = printed.lines().collect();
    assert_eq!(answers.len(), 5, "{printed}");
    assert!(["Yes", "No"].contains(&answers[1]), "{printed}");
    let questions = [(0, "What is a slice?"), (2, "What is Rc?"), (3, "What is u8?")];
    for (idx, question) in questions {
        assert!(alone(question).starts_with(answers[idx]), "{question}: {printed}");
        assert!(answers[idx].len() > 20, "{printed}");
    }
    assert_eq!(answers[4], answers[0], "the fork goes on as what it was forked from");
}
