//! Collects the turns of a conversation from messages, blocks or items.
//!
//! Where a dialect sends the assistant's thoughts, text and calls separately, consecutive ones are
//! merged into one turn, as templates expect.
//! **Invariant:** a text to be continued is the last turn.

use moeflux_chat::{Assistant, Call, Conversation, Ending, Tool, Turn};

use crate::failure::Failure;

/// The turns so far.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    turns: Vec<Turn>,
}

impl Turns {
    /// Adds a turn.
    pub(crate) fn push(&mut self, turn: Turn) {
        self.turns.push(turn);
    }

    /// Adds instructions, unless they are empty.
    pub(crate) fn system(&mut self, text: String) {
        if !text.is_empty() {
            self.push(Turn::System(text));
        }
    }

    /// Adds instructions that accompany the user's text. Claude Code sends them after the question;
    /// they are placed before it, so that the model answers the question.
    pub(crate) fn note(&mut self, text: String) {
        let is_asked = matches!(self.turns.last(), Some(Turn::User(_)));
        let question = if is_asked { self.turns.pop() } else { None };
        self.system(text);
        self.turns.extend(question);
    }

    /// Adds the user's text, if there is any.
    pub(crate) fn user(&mut self, text: Option<String>) {
        self.turns.extend(text.map(Turn::User));
    }

    /// Adds a thought, which begins a turn of the assistant.
    pub(crate) fn thought(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        let last = self.assistant(|last| last.text.is_empty() && last.calls.is_empty());
        join(last.thoughts.get_or_insert_default(), &text);
    }

    /// Adds text of the assistant.
    pub(crate) fn said(&mut self, text: &str) {
        join(&mut self.assistant(|last| last.calls.is_empty()).text, text);
    }

    /// Adds a call.
    pub(crate) fn called(&mut self, call: Call) {
        self.assistant(|_| true).calls.push(call);
    }

    /// Returns the last turn if it is the assistant's and accepts more, or else a new one.
    fn assistant(&mut self, takes_more: impl Fn(&Assistant) -> bool) -> &mut Assistant {
        let is_open = match self.turns.last() {
            Some(Turn::Assistant(last)) => takes_more(last),
            _ => false,
        };
        if !is_open {
            self.turns.push(Turn::Assistant(Assistant::default()));
        }
        match self.turns.last_mut() {
            Some(Turn::Assistant(last)) => last,
            _ => unreachable!("the last turn is the assistant's"),
        }
    }

    /// Builds the conversation. A last text of the assistant is continued unless the client says
    /// otherwise; `path` names the turns.
    pub(crate) fn conversation(
        self,
        path: &str,
        tools: Vec<Tool>,
        continues: Option<bool>,
    ) -> Result<Conversation, Failure> {
        let can_continue = match self.turns.last() {
            None => return Err(Failure::invalid(path, "is empty: there is nothing to answer")),
            Some(Turn::Assistant(last)) => {
                let has_words = !last.text.is_empty() || last.thoughts.is_some();
                last.calls.is_empty() && has_words
            }
            Some(_) => false,
        };
        if continues == Some(true) && !can_continue {
            let problem = "the last message is not an assistant text that can be continued";
            return Err(Failure::invalid("continue_final_message", problem));
        }
        let is_continued = can_continue && continues != Some(false);
        let ending = if is_continued { Ending::Continue } else { Ending::Answer };
        Ok(Conversation { turns: self.turns, tools, ending })
    }
}

fn join(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> Call {
        Call::from_text(id.into(), "f".into(), "")
    }

    #[test]
    fn consecutive_parts_of_the_assistant_are_one_turn() {
        let mut turns = Turns::default();
        turns.system(String::new());
        turns.thought("A".into());
        turns.thought("B".into());
        turns.said("C");
        turns.called(call("1"));
        turns.called(call("2"));
        turns.said("D");
        turns.thought(String::new());
        turns.thought("E".into());
        let conversation = turns.conversation("input", Vec::new(), None).unwrap();
        let turn = |thoughts: Option<&str>, text: &str, calls| {
            let thoughts = thoughts.map(str::to_owned);
            Turn::Assistant(Assistant { thoughts, text: text.to_owned(), calls })
        };
        let expected = [
            turn(Some("A\nB"), "C", vec![call("1"), call("2")]),
            turn(None, "D", Vec::new()),
            turn(Some("E"), "", Vec::new()),
        ];
        assert_eq!(conversation.turns, expected);
        assert_eq!(conversation.ending, Ending::Continue);
    }

    #[test]
    fn instructions_after_a_question_are_moved_before_it() {
        let mut turns = Turns::default();
        turns.user(Some("Q".into()));
        turns.note("N".into());
        turns.said("A");
        turns.note("M".into());
        turns.note(String::new());
        let found = turns.conversation("messages", Vec::new(), None).unwrap().turns;
        let said = Assistant { text: "A".into(), ..Assistant::default() };
        let system = |text: &str| Turn::System(text.to_owned());
        let expected = [system("N"), Turn::User("Q".into()), Turn::Assistant(said), system("M")];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_final_assistant_text_is_continued_by_default() {
        let ending = |fill: fn(&mut Turns), continues| {
            let mut turns = Turns::default();
            fill(&mut turns);
            let conversation = turns.conversation("messages", Vec::new(), continues);
            conversation.map(|it| it.ending).map_err(|it| it.message)
        };
        let user: fn(&mut Turns) = |turns| turns.push(Turn::User("A".into()));
        let said: fn(&mut Turns) = |turns| turns.said("A");
        let called: fn(&mut Turns) = |turns| turns.called(call("1"));
        assert_eq!(ending(user, None), Ok(Ending::Answer));
        assert_eq!(ending(said, None), Ok(Ending::Continue));
        assert_eq!(ending(said, Some(false)), Ok(Ending::Answer));
        assert_eq!(ending(said, Some(true)), Ok(Ending::Continue));
        assert_eq!(ending(called, None), Ok(Ending::Answer));
        assert_eq!(ending(|turns| turns.said(""), None), Ok(Ending::Answer));
        assert!(ending(user, Some(true)).unwrap_err().starts_with("`continue_final_message`"));
        let empty = ending(|_| {}, None).unwrap_err();
        assert_eq!(empty, "`messages`: is empty: there is nothing to answer");
    }
}
