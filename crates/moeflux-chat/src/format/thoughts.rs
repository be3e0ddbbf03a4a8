//! Determines how a template ends a thought, and whether thoughts can be turned off.
//!
//! It renders a turn with thoughts and text; the text between the two is the end. It renders a
//! question with and without thoughts, and compares the prompts. **Invariant:** a function of the
//! template alone. This module is independent of tokens.

use crate::conversation::{Assistant, Conversation, Ending, Turn};
use crate::format::ChatFormat;
use crate::options::ChatOptions;

/// Placeholders for thoughts and text that occur in no template.
const THOUGHTS: &str = "\u{b6}thoughts\u{a4}";
const TEXT: &str = "\u{b6}text\u{a4}";

impl ChatFormat {
    /// Returns the text that the template writes between the thoughts of a turn and its text, such
    /// as `"\n</think>\n\n"`; `None` if it shows no thoughts. For answers that consist of messages,
    /// returns the text between two messages.
    #[must_use]
    pub fn thought_end(&self) -> Option<String> {
        if let Some(next) = self.thoughts.next() {
            return Some(format!("{}{next}", self.thoughts.close));
        }
        let last = Assistant {
            thoughts: Some(THOUGHTS.to_owned()),
            text: TEXT.to_owned(),
            calls: Vec::new(),
        };
        let turns = vec![Turn::User(TEXT.to_owned()), Turn::Assistant(last)];
        let conversation = Conversation { turns, tools: Vec::new(), ending: Ending::Closed };
        let prompt = self.prompt(&conversation, &ChatOptions::default()).ok()?;
        let (_, after) = prompt.text.split_once(THOUGHTS)?;
        let (between, _) = after.split_once(TEXT)?;
        let is_end = between.trim() == self.thoughts.close;
        is_end.then(|| between.to_owned())
    }

    /// Returns whether [`ChatOptions::thinking`] makes a difference to the prompt of an answer.
    #[must_use]
    pub fn has_thinking_switch(&self) -> bool {
        let turns = vec![Turn::User(TEXT.to_owned())];
        let conversation = Conversation { turns, tools: Vec::new(), ending: Ending::Answer };
        let prompt = |thinking| {
            // A date, for templates that write it.
            let now_seconds = Some(0);
            let thinking = Some(thinking);
            let options = ChatOptions { thinking, now_seconds, ..ChatOptions::default() };
            self.prompt(&conversation, &options).ok().map(|prompt| prompt.text)
        };
        prompt(true).zip(prompt(false)).is_some_and(|(with, without)| with != without)
    }
}

#[cfg(test)]
mod tests {
    use crate::format::tests::format_named;

    #[test]
    fn a_thought_ends_as_the_template_ends_it() {
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(format_named(name).thought_end().as_deref(), expected, "{name}");
        };
        check("qwen3", Some("\n</think>\n\n"));
        check("qwen3_5", None);
        check("glm4_moe", Some("</think>\n"));
        check("kimi_k2", None);
        check("deepseek_v3", None);
        check("deepseek_v32", None);
    }

    #[test]
    fn some_templates_can_turn_thoughts_off() {
        let check = |name: &str, expected: bool| {
            assert_eq!(format_named(name).has_thinking_switch(), expected, "{name}");
        };
        check("qwen3", true);
        check("qwen3_5", true);
        check("glm4_moe", true);
        check("kimi_k2", false);
        check("deepseek_v3", false);
        check("deepseek_v32", true);
        check("gpt_oss", false);
    }
}
