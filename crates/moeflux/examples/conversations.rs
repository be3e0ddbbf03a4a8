//! Runs four conversations in shared steps. One answer is constrained. One prompt is cancelled and
//! fed again. One conversation is forked. One is saved and continues in another session.
#![expect(clippy::print_stdout, reason = "the answers go there")]

use std::sync::atomic::{AtomicBool, Ordering};

use moeflux::TokenId;
use moeflux::sample::{LogitMask, SamplerConfig};
use moeflux::step::Feed;
use moeflux::step::{StepOutput, StepUnderWay, Wanted, step};
use moeflux::{Engine, Generation, Message, Model, Result, Session};

const QUESTIONS: [&str; 4] = ["What is a slice?", "Is Vec growable?", "What is Rc?", "What is u8?"];

/// A mask that allows only these tokens.
struct AllowedTokens(Vec<TokenId>);

impl LogitMask for AllowedTokens {
    fn apply(&mut self, logits: &mut [f32]) {
        let tokens = (0..).map(TokenId).zip(logits);
        tokens
            .filter(|(token, _)| !self.0.contains(token))
            .for_each(|(_, it)| *it = f32::NEG_INFINITY);
    }
}

/// A session, its answer, the tokens to feed next (the prompt, the newest token, nothing at the
/// end), and the answer's text.
struct RunningChat<'t>(Session, Generation<'t>, Vec<TokenId>, String);

impl RunningChat<'_> {
    fn feed(&mut self) -> Feed<'_> {
        match self.0.tokens().len() {
            0 => Feed::prompt(&mut self.0, &self.2).wanting(Wanted::Last),
            _ => Feed::answer(&mut self.0, &self.2[0]),
        }
    }

    /// Chooses the next token from the logits of the feed, unless the feed was cancelled.
    fn choose_token(&mut self, output: &StepOutput, feed_idx: usize) -> Result<()> {
        let Some(logits) = output.last_of(feed_idx) else { return Ok(()) };
        let chosen = self.1.accept(logits, &self.0)?;
        self.3.push_str(chosen.text);
        self.2 = chosen.finish.map_or_else(|| vec![chosen.choice.token], |_| Vec::new());
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let model = Model::open(moeflux_demo::unpack(&std::env::temp_dir())?)?;
    let (text, mut output) = (model.text()?, StepOutput::default());
    let engine = Engine::builder(model).load()?;
    let generation = |n_tokens_max| text.generation(SamplerConfig::greedy(), n_tokens_max);
    let mut yes_or_no = AllowedTokens(text.tokenizer().encode_plain("YesNo")?);
    let mut chats = Vec::new();
    for question in QUESTIONS {
        let prompt = text.chat_prompt(&[Message::new("user", question)])?;
        chats.push(RunningChat(engine.session(1024)?, generation(24)?, prompt, String::new()));
    }
    chats[1].1 = generation(1)?.with_mask(&mut yes_or_no);
    // The prompts share a step. The last one is cancelled after the first layer.
    let flags = QUESTIONS.map(|_| AtomicBool::new(false));
    let feeds = chats.iter_mut().zip(&flags).map(|(it, flag)| it.feed().cancelled_by(Some(flag)));
    let mut feeds: Vec<Feed<'_>> = feeds.collect();
    let mut prompts = StepUnderWay::begin(&mut feeds)?;
    while prompts.advance()? {
        flags[3].store(true, Ordering::Relaxed);
    }
    while prompts.next_logits(&mut output)? {}
    prompts.commit()?;
    chats.iter_mut().enumerate().try_for_each(|(idx, chat)| chat.choose_token(&output, idx))?;
    assert!(chats[3].0.tokens().is_empty(), "it was cancelled");
    let (fork, next, answer) = (chats[0].0.fork()?, chats[0].2.clone(), chats[0].3.clone());
    chats.push(RunningChat(fork, generation(23)?, next, answer));
    let saved = chats[2].0.snapshot(..)?;
    chats[2].0 = engine.session(1024)?;
    chats[2].0.resume(&engine.read_snapshot(&mut saved.as_bytes())?)?;
    while chats.iter().any(|chat| !chat.2.is_empty()) {
        let mut running: Vec<_> = chats.iter_mut().filter(|chat| !chat.2.is_empty()).collect();
        let mut feeds: Vec<Feed<'_>> = running.iter_mut().map(|chat| chat.feed()).collect();
        step(&mut feeds, &mut output)?;
        running
            .iter_mut()
            .enumerate()
            .try_for_each(|(idx, chat)| chat.choose_token(&output, idx))?;
    }
    chats.iter().for_each(|chat| println!("{}", chat.3.replace('\n', " ")));
    Ok(())
}
