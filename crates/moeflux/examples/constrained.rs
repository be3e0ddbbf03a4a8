//! Constrains an answer to one of a few words: a mask forbids all other tokens.

#![expect(clippy::print_stdout, reason = "the answer goes there")]

use std::error::Error;

use moeflux::sample::{LogitMask, SamplerConfig};
use moeflux::{Engine, Message, Model, TokenId};

/// A mask that allows only a few sequences of tokens.
struct OneOf {
    choices: Vec<Vec<TokenId>>,
    end_tokens: Vec<TokenId>,
    n_accepted: usize,
}

impl LogitMask for OneOf {
    fn apply(&mut self, logits: &mut [f32]) {
        let mut allowed: Vec<TokenId> =
            self.choices.iter().filter_map(|it| it.get(self.n_accepted)).copied().collect();
        if self.may_end() {
            allowed.extend(&self.end_tokens);
        }
        for (token, logit) in (0..).map(TokenId).zip(logits) {
            if !allowed.contains(&token) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn accept(&mut self, token: TokenId) {
        self.choices.retain(|it| it.get(self.n_accepted) == Some(&token));
        self.n_accepted += 1;
    }

    fn may_end(&self) -> bool {
        self.choices.iter().any(|it| it.len() == self.n_accepted)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let model = Model::open(moeflux_demo::unpack(&std::env::temp_dir())?)?;
    let text = model.text()?;
    let engine = Engine::builder(model).load()?;
    let question = "Does a vector own its elements? Answer yes or no.";
    let prompt = text.chat_prompt(&[Message::new("user", question)])?;
    let choices = ["yes", "no"].map(|word| text.tokenizer().encode_plain(word));
    let choices = choices.into_iter().collect::<moeflux::Result<Vec<_>>>()?;
    let mut mask = OneOf { choices, end_tokens: text.end_tokens().to_vec(), n_accepted: 0 };
    let mut session = engine.session(1024)?;
    let generation = text.generation(SamplerConfig::greedy(), 16)?.with_mask(&mut mask);
    println!("{}", generation.answer(&mut session, &prompt)?);
    Ok(())
}
