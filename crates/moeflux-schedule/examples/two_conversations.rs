//! Two concurrent conversations over one engine: their answers share its steps.

#![expect(clippy::print_stdout, reason = "the answers go there")]

use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::channel;

use moeflux::{Engine, Model};
use moeflux_chat::{AnswerRules, Chat, ChatOptions, Conversation};
use moeflux_schedule::{Event, Job, Options, Service};

fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(moeflux_demo::unpack(&std::env::temp_dir())?)?;
    let chat = Chat::open(&model)?;
    let engine = Engine::builder(model).context(2 * 1024).load()?;
    let service = Service::of_engine(engine, Arc::clone(chat.text()), Options::new(1024))?;
    let options = ChatOptions { thinking: Some(false), ..ChatOptions::default() };
    let mut asked = Vec::new();
    for question in ["What is a trait object?", "What does a slice hold?"] {
        let conversation = Conversation::new(question);
        let prompt = chat.ask(&conversation, &AnswerRules::default(), &options)?;
        let job = Job::new(prompt.tokens.clone(), chat.text().sampling(1));
        let (events, heard) = channel();
        let ticket = service.submit(Job { n_tokens_max: Some(48), ..job }, Box::new(events))?;
        asked.push((question, prompt.answer("call"), heard, ticket));
    }
    for (question, mut answer, heard, _ticket) in asked {
        for event in heard {
            match event {
                Event::Token { token, text, .. } => drop(answer.token(token.token, &text)),
                Event::Finished { rest, finish, .. } => drop(answer.end(&rest, finish)),
                Event::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        println!("{question}\n{}\n", answer.finished().said.text);
    }
    Ok(())
}
