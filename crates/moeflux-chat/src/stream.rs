//! An answer as an iterator over its parts, for one session.
//!
//! **Invariant:** the parts are those that any other program gets for the same tokens.

use std::collections::VecDeque;

use moeflux::sample::SamplerConfig;
use moeflux::{AnswerTokens, Generated, Result, Session, TokenId};

use crate::answer::{Answer, AnswerPart, FinishedAnswer};
use crate::chat::Chat;
use crate::prepared::PreparedPrompt;

/// An answer that is being generated: see [`Chat::answer`]. The iterator ends after an error.
#[derive(Debug)]
pub struct AnswerParts<'a> {
    tokens: AnswerTokens<'a>,
    answer: Answer,
    ready: VecDeque<AnswerPart>,
}

impl Chat {
    /// Returns an iterator over the answer to a prompt, of at most `n_tokens_max` tokens, generated
    /// in `session`. Each call of `next` computes until a part is available. Dropping the iterator
    /// ends the answer.
    ///
    /// The session may be new or hold any conversation: it is cut to the tokens that it shares with
    /// the prompt, or to the last checkpoint before their end, and only the others are read. For
    /// the next turn of a conversation, these are the new ones.
    ///
    /// # Errors
    ///
    /// [`moeflux::Error::Input`] if a value of `sampling` is out of range, or a bias applies to a
    /// token outside the vocabulary; errors of [`Session::truncate`].
    pub fn answer<'a>(
        &'a self,
        prompt: &PreparedPrompt,
        session: &'a mut Session,
        (sampling, n_tokens_max): (SamplerConfig, usize),
    ) -> Result<AnswerParts<'a>> {
        let mut generation = self.text().generation(sampling, n_tokens_max)?;
        if let Some(mask) = &prompt.mask {
            generation = generation.with_mask((**mask).clone());
        }
        cut_to_shared(session, &prompt.tokens)?;
        let unread = prompt.tokens[session.tokens().len()..].to_vec();
        let tokens = generation.stream(session, unread);
        Ok(AnswerParts { tokens, answer: prompt.answer(), ready: VecDeque::new() })
    }
}

/// Cuts a session to tokens that begin the prompt. At least the prompt's last token is left to be
/// read, because the answer begins with its logits.
fn cut_to_shared(session: &mut Session, prompt: &[TokenId]) -> Result<()> {
    let pairs = session.tokens().iter().zip(prompt);
    let n_shared = pairs.take_while(|(held, wanted)| held == wanted).count();
    let n_kept = session.cut_point(n_shared.min(prompt.len().saturating_sub(1)));
    session.truncate(n_kept)
}

impl AnswerParts<'_> {
    /// Returns the answer so far; after the end of the iterator, the whole answer.
    #[must_use]
    pub fn finished(self) -> FinishedAnswer {
        self.answer.finished()
    }
}

impl Iterator for AnswerParts<'_> {
    type Item = Result<AnswerPart>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() {
            let parts = match self.tokens.next()? {
                Err(error) => return Some(Err(error)),
                Ok(Generated::Token { token, text }) => self.answer.token(token, &text),
                Ok(Generated::End { rest, finish }) => self.answer.end(&rest, finish),
                Ok(_) => Vec::new(),
            };
            self.ready.extend(parts);
        }
        self.ready.pop_front().map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use moeflux::{Engine, Finish, Model};

    use super::*;
    use crate::conversation::{Assistant, Conversation, Turn};
    use crate::options::ChatOptions;
    use crate::rules::AnswerRules;

    fn answer(chat: &Chat, session: &mut Session, conversation: &Conversation) -> Assistant {
        let options = ChatOptions { thinking: Some(false), ..ChatOptions::default() };
        let prompt = chat.ask(conversation, &AnswerRules::default(), &options).unwrap();
        let mut parts = chat.answer(&prompt, session, (SamplerConfig::greedy(), 24)).unwrap();
        let texts = parts.by_ref().map(|part| match part.unwrap() {
            AnswerPart::Text(text) => text,
            other => unreachable!("{other:?}"),
        });
        let texts: String = texts.collect();
        let FinishedAnswer { said, finish, kept, .. } = parts.finished();
        assert_eq!(said.text, texts);
        assert_eq!(finish == Some(Finish::EndToken), kept.is_some());
        kept.into_iter().for_each(|kept| chat.keep(kept));
        said
    }

    #[test]
    fn a_session_of_another_conversation_gives_the_answer_of_a_new_one() {
        let model = Model::open(moeflux_demo::unpack(&std::env::temp_dir()).unwrap()).unwrap();
        let chat = Chat::open(&model).unwrap();
        let engine = Engine::builder(model).load().unwrap();
        let session = || engine.session(1024).unwrap();
        let mut conversation = Conversation::new("What is a trait object?");
        let mut one_session = session();
        for question in ["What does a slice hold?", "What does Vec::push do?"] {
            let said = answer(&chat, &mut one_session, &conversation);
            assert_eq!(said, answer(&chat, &mut session(), &conversation));
            conversation.turns.extend([Turn::Assistant(said), Turn::User(question.into())]);
        }
        let other = Conversation::new("What does Vec::push do?");
        let alone = answer(&chat, &mut session(), &other);
        assert_eq!(answer(&chat, &mut one_session, &other), alone);
        assert_eq!(answer(&chat, &mut one_session, &other), alone, "the same prompt again");
    }
}
