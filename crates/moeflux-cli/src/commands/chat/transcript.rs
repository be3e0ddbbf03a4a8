//! A conversation: its turns so far, and the turns that may follow.
//!
//! **Invariant:** calls of the last answer get their results in order, and nothing else is said
//! before each has one. This module is independent of models and terminals.

use moeflux_chat::{Assistant, Call, Conversation, Ending, Tool, ToolResult, Turn};

/// The turns so far, and the tools on offer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Transcript {
    turns: Vec<Turn>,
    tools: Vec<Tool>,
}

impl Transcript {
    /// Returns the first line of the last question, and the last `n_lines` lines of its answer.
    pub(crate) fn tail(&self, n_lines: usize) -> (Option<&str>, String) {
        let is_user = |turn: &Turn| matches!(turn, Turn::User(_));
        let at = self.turns.iter().rposition(is_user).unwrap_or(0);
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
    pub(crate) fn add_input(&mut self, text: String) {
        let turn = match self.pending_call() {
            None => Turn::User(text),
            Some(Call { id, name, .. }) => {
                let (call_id, name) = (id.clone(), Some(name.clone()));
                Turn::Tool(ToolResult { call_id, name, text })
            }
        };
        self.turns.push(turn);
    }

    /// Adds the model's answer.
    pub(crate) fn add_answer(&mut self, answer: Assistant) {
        self.turns.push(Turn::Assistant(answer));
    }

    /// Returns the next call that has no result yet.
    pub(crate) fn pending_call(&self) -> Option<&Call> {
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
        is_asked && self.pending_call().is_none()
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
    pub(crate) fn call_id_prefix(&self) -> String {
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
    fn shown(transcript: &Transcript) -> String {
        let turn = |turn: &Turn| match turn {
            Turn::System(text) => format!("s:{text} "),
            Turn::User(text) => format!("u:{text} "),
            Turn::Assistant(answer) => format!("a:{} ", answer.text),
            Turn::Tool(result) => format!("t:{}={} ", result.call_id, result.text),
            _ => unreachable!("there is no other"),
        };
        transcript.turns().iter().map(turn).collect::<String>().trim_end().to_owned()
    }

    fn transcript() -> Transcript {
        let mut transcript = Transcript::default();
        transcript.set_system(Some("S".to_owned()));
        for (question, answer) in [("q", "x"), ("r", "y")] {
            transcript.add_input(question.to_owned());
            assert!(transcript.is_unanswered());
            transcript.add_answer(said(answer, &[]));
        }
        transcript
    }

    #[test]
    fn turns_can_be_taken_back() {
        let mut transcript = transcript();
        assert_eq!(shown(&transcript), "s:S u:q a:x u:r a:y");
        assert!(transcript.take_back_answer());
        assert_eq!(shown(&transcript), "s:S u:q a:x u:r");
        assert!(transcript.take_back_answer(), "it is not answered yet");
        assert_eq!(transcript.withdraw().as_deref(), Some("r"));
        assert_eq!(transcript.withdraw(), None);
        assert_eq!(transcript.undo().as_deref(), Some("q"));
        assert_eq!(transcript.undo(), None);
        assert!(!transcript.take_back_answer());
        assert_eq!(shown(&transcript), "s:S");
        let mut transcript = self::transcript();
        transcript.clear();
        assert_eq!(shown(&transcript), "s:S");
    }

    #[test]
    fn instructions_are_replaced() {
        let mut transcript = transcript();
        transcript.set_system(Some("T".to_owned()));
        assert_eq!(shown(&transcript), "s:T u:q a:x u:r a:y");
        let more = vec![Turn::System("A".into()), Turn::System("B".into())];
        transcript.replace(Conversation { turns: more, ..Conversation::default() });
        assert_eq!(transcript.system().as_deref(), Some("A\n\nB"));
        transcript.set_system(None);
        assert_eq!((transcript.system(), shown(&transcript).as_str()), (None, ""));
    }

    #[test]
    fn calls_get_their_results_in_order() {
        let mut transcript = Transcript::default();
        transcript.add_input("q".to_owned());
        assert_eq!(transcript.call_id_prefix(), "call_1");
        transcript.add_answer(said("", &["call_1_0", "b"]));
        let open = |transcript: &Transcript| transcript.pending_call().map(|call| call.id.clone());
        assert_eq!(open(&transcript).as_deref(), Some("call_1_0"));
        transcript.add_input("1".to_owned());
        assert_eq!(open(&transcript).as_deref(), Some("b"));
        assert!(!transcript.is_unanswered());
        transcript.add_input("2".to_owned());
        assert!(open(&transcript).is_none() && transcript.is_unanswered());
        assert_eq!(shown(&transcript), "u:q a: t:call_1_0=1 t:b=2");
        assert_eq!(transcript.withdraw(), None, "results are no question");
        let mut again = transcript.clone();
        assert!(again.take_back_answer(), "the model speaks next as it is");
        assert_eq!(again, transcript);
        transcript.add_answer(said("x", &[]));
        assert!(transcript.take_back_answer());
        assert_eq!(shown(&transcript), "u:q a: t:call_1_0=1 t:b=2");
        assert_eq!(transcript.undo().as_deref(), Some("q"));
        assert_eq!(shown(&transcript), "");
    }

    #[test]
    fn an_answer_that_waits_for_results_can_be_taken_back() {
        let mut transcript = Transcript::default();
        transcript.add_input("q".to_owned());
        transcript.add_answer(said("", &["a", "b"]));
        transcript.add_input("1".to_owned());
        assert!(transcript.take_back_answer());
        assert_eq!(shown(&transcript), "u:q");
    }

    #[test]
    fn ids_are_new() {
        let mut transcript = Transcript::default();
        transcript.add_input("q".to_owned());
        transcript.add_answer(said("", &["call_2_0"]));
        assert_eq!(transcript.call_id_prefix(), "call_3");
    }

    #[test]
    fn the_end_is_the_last_question_and_the_last_lines_of_its_answer() {
        let mut transcript = Transcript::default();
        assert_eq!(transcript.tail(2), (None, String::new()));
        transcript.add_input("One?\nmore".to_owned());
        assert_eq!(transcript.tail(2), (Some("One?"), String::new()));
        transcript.add_answer(Assistant { text: "a\nb\nc\n".to_owned(), ..Assistant::default() });
        assert_eq!(transcript.tail(3), (Some("One?"), "a\nb\nc".to_owned()));
        assert_eq!(transcript.tail(2), (Some("One?"), "...\nb\nc".to_owned()));
        transcript.add_input("Two?".to_owned());
        assert_eq!(transcript.tail(2), (Some("Two?"), String::new()));
    }
}
