//! Runs several conversations in shared steps. Each answer is the same as it would be alone.

#![expect(clippy::print_stdout, reason = "the answers go there")]

use std::error::Error;

use moeflux::step::{Feed, StepOutput, Wanted, step};
use moeflux::{
    Engine, Generation, Message, Model, ModelText, Result, Session, TemplateOptions, TokenId,
};

const QUESTIONS: [&str; 3] =
    ["What is a trait object?", "What does a slice hold?", "What does Vec::push do?"];

/// One of the conversations that share steps.
struct ConcurrentChat<'t> {
    session: Session,
    generation: Generation<'t>,
    /// Tokens to feed next: first the prompt, then the newest token of the answer.
    next: Vec<TokenId>,
    answer: String,
    is_over: bool,
}

impl<'t> ConcurrentChat<'t> {
    fn begin(engine: &Engine, text: &'t ModelText, question: &str) -> Result<Self> {
        let options =
            TemplateOptions { enable_thinking: Some(false), ..TemplateOptions::default() };
        let messages = [Message::new("user", question)];
        Ok(Self {
            session: engine.session(1024)?,
            generation: text.generation(text.sampling(1), 48)?,
            next: text.chat_prompt_with(&messages, &options)?,
            answer: String::new(),
            is_over: false,
        })
    }

    fn feed(&mut self) -> Feed<'_> {
        let n_best = self.generation.n_best_needed();
        let feed = if self.session.tokens().is_empty() {
            Feed::prompt(&mut self.session, &self.next).wanting(Wanted::Last)
        } else {
            Feed::answer(&mut self.session, &self.next[0])
        };
        feed.best(n_best)
    }

    /// Chooses the next token from the logits of the feed.
    fn choose_token(&mut self, output: &StepOutput, feed_idx: usize) -> Result<()> {
        let logits = output.last_of(feed_idx).expect("each feed wants logits");
        let chosen = self.generation.accept(logits, &self.session)?;
        self.answer.push_str(chosen.text);
        self.is_over = chosen.finish.is_some();
        self.next = vec![chosen.choice.token];
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let dir = moeflux_demo::unpack(&std::env::temp_dir())?;
    let model = Model::open(dir)?;
    let text = model.text()?;
    let engine = Engine::builder(model).context(QUESTIONS.len() * 1024).load()?;
    let chats = QUESTIONS.iter().map(|question| ConcurrentChat::begin(&engine, &text, question));
    let mut chats = chats.collect::<Result<Vec<_>>>()?;
    let mut output = StepOutput::default();
    loop {
        let mut running: Vec<&mut ConcurrentChat<'_>> =
            chats.iter_mut().filter(|it| !it.is_over).collect();
        if running.is_empty() {
            break;
        }
        let mut feeds: Vec<Feed<'_>> = running.iter_mut().map(|chat| chat.feed()).collect();
        step(&mut feeds, &mut output)?;
        for feed in &mut feeds {
            feed.outcome()?;
        }
        for (feed_idx, chat) in running.iter_mut().enumerate() {
            chat.choose_token(&output, feed_idx)?;
        }
    }
    for (question, chat) in QUESTIONS.iter().zip(&mut chats) {
        println!("{question}\n{}{}\n", chat.answer, chat.generation.rest());
    }
    Ok(())
}
