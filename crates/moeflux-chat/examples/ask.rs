//! Prints the answer of the bundled model, in a dozen lines: `ask [DIR]`.

#![expect(clippy::print_stdout, reason = "the answer goes there")]

use std::error::Error;
use std::path::PathBuf;

use moeflux::{Engine, Model};
use moeflux_chat::{AnswerPart, AnswerRules, Chat, ChatOptions, Conversation};

fn main() -> Result<(), Box<dyn Error>> {
    let demo = || moeflux_demo::unpack(&std::env::temp_dir());
    let dir = std::env::args().nth(1).map_or_else(demo, |dir| Ok(PathBuf::from(dir)))?;
    let model = Model::open(dir)?;
    let chat = Chat::open(&model)?;
    let engine = Engine::builder(model).load()?;
    let conversation = Conversation::new("What is a trait object?");
    let options = ChatOptions { thinking: Some(false), ..ChatOptions::default() };
    let prompt = chat.ask(&conversation, &AnswerRules::default(), &options)?;
    let mut session = engine.session(1024)?;
    for part in chat.answer(&prompt, &mut session, (chat.text().sampling(1), 48))? {
        if let AnswerPart::Text(text) = part? {
            print!("{text}");
        }
    }
    println!();
    Ok(())
}
