//! Predicts where later prompts diverge from this one; the computation up to there can be reused.
//!
//! The next request is unknown, but the template determines its likely prefix: the same
//! instructions before another question, another question in place of the last one, and this answer
//! as part of the history. **Invariant:** the prediction affects no result.

use crate::conversation::{Assistant, Conversation, Ending, Turn};
use crate::format::ChatFormat;
use crate::options::ChatOptions;

/// A placeholder for unknown text. Real text hardly ever begins with these characters.
const UNKNOWN: &str = "\u{b6}\u{a4}";

impl ChatFormat {
    /// Returns the lengths in bytes, ascending, of the prefixes of `prompt` that later prompts are
    /// likely to share. `prompt` is the conversation as rendered by this format with these options.
    #[must_use]
    pub fn parts(
        &self,
        conversation: &Conversation,
        options: &ChatOptions,
        prompt: &str,
    ) -> Vec<usize> {
        let later = [another_question(conversation), edited(conversation), history(conversation)];
        let rendered = later.into_iter().flatten().map(|later| self.prompt(&later, options));
        // Conversations that the template refuses are not expected.
        let rendered = rendered.filter_map(Result::ok);
        let mut parts: Vec<usize> = rendered.map(|it| shared_bytes(prompt, &it.text)).collect();
        parts.retain(|n_bytes| *n_bytes > 0);
        parts.sort_unstable();
        parts.dedup();
        parts
    }
}

/// Returns the conversation with the same instructions and tools and another question.
fn another_question(conversation: &Conversation) -> Option<Conversation> {
    let is_instruction = |turn: &&Turn| matches!(turn, Turn::System(_));
    let n_instructions = conversation.turns.iter().take_while(is_instruction).count();
    (n_instructions < conversation.turns.len()).then(|| asked_at(conversation, n_instructions))
}

/// Returns the conversation with another question in place of the last one.
fn edited(conversation: &Conversation) -> Option<Conversation> {
    let is_question = |turn: &Turn| matches!(turn, Turn::User(_));
    let last = conversation.turns.iter().rposition(is_question)?;
    Some(asked_at(conversation, last))
}

/// Returns the first `n_turns` turns of the conversation, followed by a question.
fn asked_at(conversation: &Conversation, n_turns: usize) -> Conversation {
    let mut turns = conversation.turns[..n_turns].to_vec();
    turns.push(Turn::User(UNKNOWN.to_owned()));
    Conversation { turns, tools: conversation.tools.clone(), ending: Ending::Answer }
}

/// Returns the conversation with the requested answer as part of the history.
fn history(conversation: &Conversation) -> Option<Conversation> {
    let mut turns = conversation.turns.clone();
    match (conversation.ending, turns.last_mut()) {
        (Ending::Answer, _) => {
            let text = UNKNOWN.to_owned();
            turns.push(Turn::Assistant(Assistant { text, ..Assistant::default() }));
        }
        (Ending::Continue, Some(Turn::Assistant(last))) => last.text.push_str(UNKNOWN),
        _ => return None,
    }
    turns.push(Turn::User(UNKNOWN.to_owned()));
    Some(Conversation { turns, tools: conversation.tools.clone(), ending: Ending::Answer })
}

/// Returns the length of the common prefix in bytes, at a character boundary.
fn shared_bytes(a: &str, b: &str) -> usize {
    let same = a.char_indices().zip(b.chars()).find(|((_, a), b)| a != b);
    same.map_or(a.len().min(b.len()), |((at, _), _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::format_named;

    fn parts(template: &str, turns: Vec<Turn>) -> Vec<String> {
        let conversation = Conversation { turns, ..Conversation::default() };
        let options = ChatOptions::default();
        let format = format_named(template);
        let prompt = format.prompt(&conversation, &options).unwrap().text;
        let parts = format.parts(&conversation, &options, &prompt);
        parts.into_iter().map(|n_bytes| prompt[..n_bytes].to_owned()).collect()
    }

    fn assistant(text: &str) -> Turn {
        Turn::Assistant(Assistant { text: text.to_owned(), ..Assistant::default() })
    }

    #[test]
    fn prompts_split_after_instructions_and_before_question_and_answer() {
        let system = Turn::System("Be brief.".into());
        let ask = |text: &str| Turn::User(text.into());
        let instructions = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n";
        let first = format!("{instructions}Why?<|im_end|>\n<|im_start|>assistant\n");
        let found = parts("qwen3", vec![system.clone(), ask("Why?")]);
        assert_eq!(found, [instructions, first.as_str()]);
        let turns = vec![system, ask("Why?"), assistant("So."), ask("How?")];
        let found = parts("qwen3_5", turns);
        assert_eq!(found[0], instructions);
        let question = format!("{first}So.<|im_end|>\n<|im_start|>user\n");
        assert_eq!(found[1], question);
        // There the template opens a thought, which it omits in the history.
        let answer = format!("{question}How?<|im_end|>\n<|im_start|>assistant\n");
        assert_eq!(found[2..], [answer]);
    }

    #[test]
    fn conversations_that_a_template_refuses_are_left_out() {
        let found = parts("qwen3_5", vec![Turn::User("Why?".into())]);
        assert_eq!(found.len(), 2);
        assert!(shared_bytes("a\u{e9}b", "a\u{e8}b") == 1 && shared_bytes("ab", "a") == 1);
    }
}
