//! A conversation: what was said, and what may be said next.
//!
//! **Invariant:** calls of the last answer get their results in order, and nothing else is said
//! before each has one. Independent of models and terminals.

use moeflux_chat::{Assistant, Call, Conversation, Ending, Tool, ToolResult, Turn};

/// The turns so far, and the tools on offer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Talk {
    turns: Vec<Turn>,
    tools: Vec<Tool>,
}

impl Talk {
    /// Returns the first line of the last question, and the last `n_lines` lines of its answer.
    pub(crate) fn end(&self, n_lines: usize) -> (Option<&str>, String) {
        let said = |turn: &Turn| matches!(turn, Turn::User(_));
        let at = self.turns.iter().rposition(said).unwrap_or(0);
        let question = self.turns.get(at).and_then(|turn| match turn {
            Turn::User(text) => text.trim().lines().next(),
            _ => None,
        });
        let answer = self.turns[at..].iter().rev().find_map(|turn| match turn {
            Turn::Assistant(answer) => Some(answer.text.trim()),
            _ => None,
        });
        let lines: Vec<&str> = answer.unwrap_or_default().lines().collect();
        let shown = lines[lines.len().saturating_sub(n_lines)..].join("\n");
        (question, if lines.len() > n_lines { format!("...\n{shown}") } else { shown })
    }

    /// Returns the conversation for a template; the model's answer comes next.
    pub(crate) fn conversation(&self) -> Conversation {
        let (turns, tools) = (self.turns.clone(), self.tools.clone());
        Conversation { turns, tools, ending: Ending::Answer }
    }

    pub(crate) fn turns(&self) -> &[Turn] {
        &self.turns
    }

    pub(crate) fn tools(&self) -> &[Tool] {
        &self.tools
    }

    pub(crate) fn set_tools(&mut self, tools: Vec<Tool>) {
        self.tools = tools;
    }

    /// Replaces the conversation. The tools stay if `other` has none.
    pub(crate) fn replace(&mut self, other: Conversation) {
        self.turns = other.turns;
        if !other.tools.is_empty() {
            self.tools = other.tools;
        }
    }

    /// Returns the system messages at the start, joined.
    pub(crate) fn system(&self) -> Option<String> {
        let texts = self.turns.iter().map_while(|turn| match turn {
            Turn::System(text) => Some(text.as_str()),
            _ => None,
        });
        let texts: Vec<&str> = texts.collect();
        (!texts.is_empty()).then(|| texts.join("\n\n"))
    }

    /// Replaces the system messages at the start.
    pub(crate) fn set_system(&mut self, text: Option<String>) {
        self.turns.drain(..self.n_system_turns());
        self.turns.splice(0..0, text.map(Turn::System));
    }

    /// Adds a user message, or the result of the next open call.
    pub(crate) fn say(&mut self, text: String) {
        let turn = match self.open_call() {
            None => Turn::User(text),
            Some(Call { id, name, .. }) => {
                let (call_id, name) = (id.clone(), Some(name.clone()));
                Turn::Tool(ToolResult { call_id, name, text })
            }
        };
        self.turns.push(turn);
    }

    /// Adds the model's answer.
    pub(crate) fn answer(&mut self, answer: Assistant) {
        self.turns.push(Turn::Assistant(answer));
    }

    /// Returns the next call that has no result yet.
    pub(crate) fn open_call(&self) -> Option<&Call> {
        let is_result = |turn: &&Turn| matches!(turn, Turn::Tool(_));
        let n_results = self.turns.iter().rev().take_while(is_result).count();
        match self.turns.iter().rev().nth(n_results) {
            Some(Turn::Assistant(last)) => last.calls.get(n_results),
            _ => None,
        }
    }

    /// Returns whether the model speaks next.
    pub(crate) fn is_unanswered(&self) -> bool {
        let is_asked = matches!(self.turns.last(), Some(Turn::User(_) | Turn::Tool(_)));
        is_asked && self.open_call().is_none()
    }

    /// Removes and returns a question at the end that has no answer.
    pub(crate) fn withdraw(&mut self) -> Option<String> {
        match self.turns.pop_if(|last| matches!(last, Turn::User(_))) {
            Some(Turn::User(text)) => Some(text),
            _ => None,
        }
    }

    /// Removes the last question and everything after it. Returns the question.
    pub(crate) fn undo(&mut self) -> Option<String> {
        let last = self.turns.iter().rposition(|turn| matches!(turn, Turn::User(_)))?;
        self.turns.truncate(last + 1);
        self.withdraw()
    }

    /// Removes the last answer and the results of its calls. Returns whether the model can answer
    /// now.
    pub(crate) fn take_back_answer(&mut self) -> bool {
        if !self.is_unanswered() {
            let is_answer = |turn: &Turn| matches!(turn, Turn::Assistant(_));
            let Some(last) = self.turns.iter().rposition(is_answer) else { return false };
            self.turns.truncate(last);
        }
        self.is_unanswered()
    }

    /// Removes everything but the system messages at the start and the tools.
    pub(crate) fn clear(&mut self) {
        self.turns.truncate(self.n_system_turns());
    }

    /// Returns a prefix for the ids of the next answer's calls that no other id has.
    pub(crate) fn call_stem(&self) -> String {
        let mut number = self.turns.len();
        loop {
            let begin = format!("call_{number}_");
            let is_taken = |turn: &Turn| match turn {
                Turn::Assistant(answer) => answer.calls.iter().any(|it| it.id.starts_with(&begin)),
                _ => false,
            };
            if !self.turns.iter().any(is_taken) {
                return format!("call_{number}");
            }
            number += 1;
        }
    }

    fn n_system_turns(&self) -> usize {
        self.turns.iter().take_while(|turn| matches!(turn, Turn::System(_))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str, call_ids: &[&str]) -> Assistant {
        let call = |id: &&str| Call::from_text((*id).to_owned(), "f".to_owned(), "{}");
        let calls = call_ids.iter().map(call).collect();
        Assistant { thoughts: None, text: text.to_owned(), calls }
    }

    /// Formats roles and texts.
    fn shown(talk: &Talk) -> String {
        let turn = |turn: &Turn| match turn {
            Turn::System(text) => format!("s:{text} "),
            Turn::User(text) => format!("u:{text} "),
            Turn::Assistant(answer) => format!("a:{} ", answer.text),
            Turn::Tool(result) => format!("t:{}={} ", result.call_id, result.text),
            _ => unreachable!("there is no other"),
        };
        talk.turns().iter().map(turn).collect::<String>().trim_end().to_owned()
    }

    fn talk() -> Talk {
        let mut talk = Talk::default();
        talk.set_system(Some("S".to_owned()));
        for (question, answer) in [("q", "x"), ("r", "y")] {
            talk.say(question.to_owned());
            assert!(talk.is_unanswered());
            talk.answer(said(answer, &[]));
        }
        talk
    }

    #[test]
    fn what_was_said_can_be_taken_back() {
        let mut talk = talk();
        assert_eq!(shown(&talk), "s:S u:q a:x u:r a:y");
        assert!(talk.take_back_answer());
        assert_eq!(shown(&talk), "s:S u:q a:x u:r");
        assert!(talk.take_back_answer(), "it is not answered yet");
        assert_eq!(talk.withdraw().as_deref(), Some("r"));
        assert_eq!(talk.withdraw(), None);
        assert_eq!(talk.undo().as_deref(), Some("q"));
        assert_eq!(talk.undo(), None);
        assert!(!talk.take_back_answer());
        assert_eq!(shown(&talk), "s:S");
        let mut talk = self::talk();
        talk.clear();
        assert_eq!(shown(&talk), "s:S");
    }

    #[test]
    fn instructions_are_replaced() {
        let mut talk = talk();
        talk.set_system(Some("T".to_owned()));
        assert_eq!(shown(&talk), "s:T u:q a:x u:r a:y");
        let more = vec![Turn::System("A".into()), Turn::System("B".into())];
        talk.replace(Conversation { turns: more, ..Conversation::default() });
        assert_eq!(talk.system().as_deref(), Some("A\n\nB"));
        talk.set_system(None);
        assert_eq!((talk.system(), shown(&talk).as_str()), (None, ""));
    }

    #[test]
    fn calls_get_their_results_in_order() {
        let mut talk = Talk::default();
        talk.say("q".to_owned());
        assert_eq!(talk.call_stem(), "call_1");
        talk.answer(said("", &["call_1_0", "b"]));
        let open = |talk: &Talk| talk.open_call().map(|call| call.id.clone());
        assert_eq!(open(&talk).as_deref(), Some("call_1_0"));
        talk.say("1".to_owned());
        assert_eq!(open(&talk).as_deref(), Some("b"));
        assert!(!talk.is_unanswered());
        talk.say("2".to_owned());
        assert!(open(&talk).is_none() && talk.is_unanswered());
        assert_eq!(shown(&talk), "u:q a: t:call_1_0=1 t:b=2");
        assert_eq!(talk.withdraw(), None, "results are no question");
        let mut again = talk.clone();
        assert!(again.take_back_answer(), "the model speaks next as it is");
        assert_eq!(again, talk);
        talk.answer(said("x", &[]));
        assert!(talk.take_back_answer());
        assert_eq!(shown(&talk), "u:q a: t:call_1_0=1 t:b=2");
        assert_eq!(talk.undo().as_deref(), Some("q"));
        assert_eq!(shown(&talk), "");
    }

    #[test]
    fn an_answer_that_waits_for_results_can_be_taken_back() {
        let mut talk = Talk::default();
        talk.say("q".to_owned());
        talk.answer(said("", &["a", "b"]));
        talk.say("1".to_owned());
        assert!(talk.take_back_answer());
        assert_eq!(shown(&talk), "u:q");
    }

    #[test]
    fn ids_are_new() {
        let mut talk = Talk::default();
        talk.say("q".to_owned());
        talk.answer(said("", &["call_2_0"]));
        assert_eq!(talk.call_stem(), "call_3");
    }

    #[test]
    fn the_end_is_the_last_question_and_the_last_lines_of_its_answer() {
        let mut talk = Talk::default();
        assert_eq!(talk.end(2), (None, String::new()));
        talk.say("One?\nmore".to_owned());
        assert_eq!(talk.end(2), (Some("One?"), String::new()));
        talk.answer(Assistant { text: "a\nb\nc\n".to_owned(), ..Assistant::default() });
        assert_eq!(talk.end(3), (Some("One?"), "a\nb\nc".to_owned()));
        assert_eq!(talk.end(2), (Some("One?"), "...\nb\nc".to_owned()));
        talk.say("Two?".to_owned());
        assert_eq!(talk.end(2), (Some("Two?"), String::new()));
    }
}
