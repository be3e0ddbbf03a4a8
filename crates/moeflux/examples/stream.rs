//! Prints an answer while it is generated, and counts its tokens by their events.

#![expect(clippy::print_stdout, reason = "the answer goes there")]
#![expect(clippy::print_stderr, reason = "so that the answer stays apart")]

use std::error::Error;
use std::io::Write as _;
use std::ops::ControlFlow;

use moeflux::{Engine, Event, Message, Model, TemplateOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(moeflux_demo::unpack(&std::env::temp_dir())?)?;
    let text = model.text()?;
    let engine = Engine::builder(model).load()?;
    let options = TemplateOptions { enable_thinking: Some(false), ..TemplateOptions::default() };
    let question = Message::new("user", "What is a trait object?");
    let prompt = text.chat_prompt_with(&[question], &options)?;
    let mut session = engine.session(1024)?;
    let mut n_tokens = 0;
    let generation = text.generation(text.sampling(1), 48)?;
    let finish = generation.run(&mut session, &prompt, &mut |event| {
        match event {
            Event::Token { .. } => n_tokens += 1,
            Event::Text(piece) => print!("{piece}"),
            _ => {}
        }
        // The output was closed: end the answer.
        match std::io::stdout().flush() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    println!();
    eprintln!("{n_tokens} tokens; why it ended: {}", finish.name());
    Ok(())
}
