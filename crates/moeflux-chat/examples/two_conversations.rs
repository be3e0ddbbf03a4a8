//! Two concurrent conversations over one engine: their answers share its steps.

#![expect(clippy::print_stdout, reason = "the answers go there")]

use std::error::Error;
use std::sync::Arc;

use moeflux::{Engine, Model};
use moeflux_chat::{AnswerRules, Chat, ChatOptions, Conversation};
use moeflux_schedule::{Options, Service};

fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(moeflux_demo::unpack(&std::env::temp_dir())?)?;
    let chat = Chat::open(&model)?;
    let engine = Engine::builder(model).context(2 * 1024).load()?;
    let service = Service::of_engine(engine, Arc::clone(chat.text()), Options::new(1024))?;
    let options = ChatOptions { thinking: Some(false), ..ChatOptions::default() };
    let mut answers = Vec::new();
    for question in ["What is a trait object?", "What does a slice hold?"] {
        let conversation = Conversation::new(question);
        let prompt = chat.ask(&conversation, &AnswerRules::default(), &options)?;
        let answer = chat.submit(&service, &prompt, (chat.text().sampling(1), 48))?;
        answers.push((question, answer));
    }
    for (question, mut answer) in answers {
        answer.try_for_each(|part| part.map(drop))?;
        println!("{question}\n{}\n", answer.finished().said.text);
    }
    Ok(())
}
