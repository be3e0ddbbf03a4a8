//! Generates an answer under an async runtime. A separate thread computes; the text comes through a
//! channel. The answer ends when the receiver is dropped.

#![expect(clippy::print_stdout, reason = "the answer goes there")]

use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;

use moeflux::{Engine, Event, Finish, Message, Model, TemplateOptions};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::spawn_blocking;

/// Kernels compiled without optimisation need more than the 2 MB of stack that threads of a runtime
/// have by default.
const STACK_BYTES: usize = 8 << 20;

/// Pieces of text that the channel holds.
const N_WAITING_MAX: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = moeflux_demo::unpack(&std::env::temp_dir())?;
    let runtime = Builder::new_current_thread().thread_stack_size(STACK_BYTES).build()?;
    runtime.block_on(async {
        let (pieces, mut incoming) = channel(N_WAITING_MAX);
        let answering = spawn_blocking(move || answer(dir, &pieces));
        while let Some(piece) = incoming.recv().await {
            print!("{piece}");
        }
        let finish = answering.await??;
        println!("\n[{}]", finish.name());
        Ok(())
    })
}

/// Does all computation. A server would load the engine once and keep it.
fn answer(dir: PathBuf, pieces: &Sender<String>) -> moeflux::Result<Finish> {
    let model = Model::open(dir)?;
    let text = model.text()?;
    let engine = Engine::builder(model).load()?;
    let options = TemplateOptions { enable_thinking: Some(false), ..TemplateOptions::default() };
    let question = Message::new("user", "What is a trait object?");
    let prompt = text.chat_prompt_with(&[question], &options)?;
    let mut session = engine.session(1024)?;
    text.generation(text.sampling(1), 48)?.run(&mut session, &prompt, &mut |event| match event {
        Event::Text(piece) if pieces.blocking_send(piece.to_owned()).is_err() => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    })
}
