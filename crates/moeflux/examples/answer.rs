//! Answers one question in a dozen lines, with the bundled model or the one in DIR: `answer [DIR]`.

#![expect(clippy::print_stdout, reason = "the answer goes there")]

use std::error::Error;
use std::path::PathBuf;

use moeflux::{Engine, Message, Model, TemplateOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let demo = || moeflux_demo::unpack(&std::env::temp_dir());
    let dir = std::env::args().nth(1).map_or_else(demo, |dir| Ok(PathBuf::from(dir)))?;
    let model = Model::open(dir)?;
    let text = model.text()?;
    let engine = Engine::builder(model).load()?;
    let options = TemplateOptions { enable_thinking: Some(false), ..TemplateOptions::default() };
    let question = Message::new("user", "What is a trait object?");
    let prompt = text.chat_prompt_with(&[question], &options)?;
    let mut session = engine.session(1024)?;
    let answer = text.generation(text.sampling(1), 48)?.answer(&mut session, &prompt)?;
    println!("{answer}");
    Ok(())
}
