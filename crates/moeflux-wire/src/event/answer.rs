//! Converts the sampled tokens of one answer to events.
//!
//! **Invariant:** every token except the one that ends the answer is counted once, as thought or
//! not. The tokens listed in [`ResponseEvent::Text`] are those of the text, in order, whether the
//! text comes with them or later, followed by the token that ended the answer. Tokens of thoughts,
//! of the whitespace after them, of message headers and of calls are not listed.

use moeflux::{TokenId, Tokenizer};
use moeflux_chat::{Answer, AnswerPart, AnswerStage, KeptAnswer};

use crate::event::{Reason, ResponseEvent, TokenLogprob, TokenText, Usage};

/// A token, its log-probability if requested, and the most likely tokens at its position.
pub type Score<'a> = (TokenId, Option<f32>, &'a [(TokenId, f32)]);

/// An answer that is being generated.
#[derive(Clone, Debug)]
pub struct AnswerEvents {
    index: usize,
    answer: Answer,
    /// Tokens whose text is held back.
    waiting: Vec<TokenLogprob>,
    /// The token counts of the prompt.
    usage: Usage,
}

impl AnswerEvents {
    /// Creates the answer with this index, to a prompt with the counts `usage`.
    #[must_use]
    pub fn new(index: usize, answer: Answer, usage: Usage) -> Self {
        Self { index, answer, waiting: Vec::new(), usage }
    }

    /// Returns the events for a token that does not end the answer; `text` became certain with it.
    pub fn chosen(
        &mut self,
        tokenizer: &Tokenizer,
        token: Score<'_>,
        text: &str,
    ) -> Vec<ResponseEvent> {
        let (id, logprob, _) = token;
        let score = logprob.is_some().then(|| scored(tokenizer, token));
        self.token(id, text, score)
    }

    /// Takes the token that ends the answer, with its log-probability.
    pub fn ended_by(&mut self, tokenizer: &Tokenizer, token: Score<'_>) {
        self.end_token(scored(tokenizer, token));
    }

    /// After calls the token is not part of the text, as theirs are not.
    fn end_token(&mut self, score: TokenLogprob) {
        if self.answer.n_calls() == 0 {
            self.waiting.push(score);
        }
    }

    /// Ends the answer, with the text that the engine held back.
    pub fn end(&mut self, rest: &str, reason: Reason) -> Vec<ResponseEvent> {
        let parts = self.answer.end(rest, reason.finish());
        let mut events = self.events(parts);
        let tokens = std::mem::take(&mut self.waiting);
        let is_in_text = matches!(self.answer.stage(), AnswerStage::Start | AnswerStage::Text);
        if !tokens.is_empty() && is_in_text && !self.answer.is_in_call() {
            events.push(ResponseEvent::Text { index: self.index, text: String::new(), tokens });
        }
        let reason = match reason {
            // An answer with a cut call must not pass for a complete one.
            Reason::End | Reason::Stop(_) if self.answer.has_cut_call() => Reason::Length,
            Reason::End if self.answer.n_calls() > 0 => Reason::Calls,
            other => other,
        };
        let usage = Usage {
            n_answer_tokens: self.answer.n_tokens(),
            n_thought_tokens: self.answer.n_thought_tokens(),
            ..self.usage
        };
        events.push(ResponseEvent::Finished { index: self.index, reason, usage });
        events
    }

    /// Takes the answer for later histories; `None` if it must not be kept.
    pub fn take_kept(&mut self) -> Option<KeptAnswer> {
        self.answer.take_kept()
    }

    fn token(
        &mut self,
        token: TokenId,
        text: &str,
        score: Option<TokenLogprob>,
    ) -> Vec<ResponseEvent> {
        let before = self.answer.stage();
        self.waiting.extend(score);
        let parts = self.answer.token(token, text);
        let stage = self.answer.stage();
        let events = self.events(parts);
        let is_text = !matches!(
            stage,
            AnswerStage::Thought | AnswerStage::AfterThought | AnswerStage::Header
        );
        // The last marker of a header is not part of the following text.
        if self.answer.is_in_call() || !is_text || before == AnswerStage::Header {
            self.waiting.clear();
        }
        events
    }

    fn events(&mut self, parts: Vec<AnswerPart>) -> Vec<ResponseEvent> {
        parts.into_iter().filter_map(|part| self.event(part)).collect()
    }

    fn event(&mut self, part: AnswerPart) -> Option<ResponseEvent> {
        let index = self.index;
        match part {
            AnswerPart::Thought(text) => Some(ResponseEvent::Thought { index, text }),
            AnswerPart::Text(text) => {
                Some(ResponseEvent::Text { index, text, tokens: std::mem::take(&mut self.waiting) })
            }
            AnswerPart::CallBegun { call_idx, id, name } => {
                Some(ResponseEvent::CallBegun { index, call_idx, id, name })
            }
            AnswerPart::CallArguments { call_idx, text } => {
                Some(ResponseEvent::CallArguments { index, call_idx, text })
            }
            AnswerPart::CallEnded { call_idx, .. } => {
                // The tokens of its closing marker.
                self.waiting.clear();
                Some(ResponseEvent::CallEnded { index, call_idx })
            }
            AnswerPart::CallCut { .. } => {
                self.waiting.clear();
                None
            }
            _ => None,
        }
    }
}

/// Describes a token with its log-probability and the alternatives. Also used for an echoed prompt.
#[must_use]
pub fn scored(tokenizer: &Tokenizer, (id, logprob, top): Score<'_>) -> TokenLogprob {
    let seen = |token| TokenText {
        token,
        text: tokenizer.token_text(token).unwrap_or_default(),
        bytes: tokenizer.token_bytes(token),
    };
    let top = top.iter().map(|(token, logprob)| (seen(*token), *logprob)).collect();
    TokenLogprob { token: seen(id), logprob, top }
}

#[cfg(test)]
mod tests {
    use moeflux_chat::{AnswerReader, AnswerStart, CallFormat, HiddenMarkers, ThoughtFormat, Tool};

    use super::*;

    const PROMPT: Usage = Usage { n_prompt_tokens: 12, n_cached_tokens: 8, ..Usage::NONE };

    /// Creates the answer with index 3.
    fn answer(reader: AnswerReader) -> AnswerEvents {
        AnswerEvents::new(3, Answer::new(reader, HiddenMarkers::default(), "call_a_3"), PROMPT)
    }

    /// Creates an answer that may call `f` and `g`.
    fn calling() -> AnswerEvents {
        let format = CallFormat::all().find(|it| it.title == "hermes").unwrap();
        let tools = ["f", "g"].map(|name| Tool::function(name.into(), None, None));
        let reader = AnswerReader::new(AnswerStart::Text, ThoughtFormat::usual());
        answer(reader.with_calls(format, &tools))
    }

    fn call(name: &str) -> String {
        format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {{}}}}</tool_call>")
    }

    /// Checks the events for these token texts and the text that is held back, and the numbers of
    /// tokens in the answer and in thoughts.
    #[track_caller]
    fn check(start: AnswerStart, texts: &[&str], rest: &str, expected: (&[&str], usize, usize)) {
        check_read(AnswerReader::new(start, ThoughtFormat::usual()), texts, rest, expected);
    }

    #[track_caller]
    fn check_read(
        reader: AnswerReader,
        texts: &[&str],
        rest: &str,
        (expected, n_answer_tokens, n_thought_tokens): (&[&str], usize, usize),
    ) {
        let mut answer = answer(reader);
        let mut events = Vec::new();
        for (id, text) in (0..).zip(texts) {
            let token = TokenText { token: TokenId(id), text: String::new(), bytes: Vec::new() };
            let score = TokenLogprob { token, logprob: Some(-1.0), top: Vec::new() };
            events.extend(answer.token(TokenId(id), text, Some(score)));
        }
        events.extend(answer.end(rest, Reason::End));
        let usage = Usage { n_answer_tokens, n_thought_tokens, ..PROMPT };
        let last = ResponseEvent::Finished { index: 3, reason: Reason::End, usage };
        assert_eq!(events.pop(), Some(last));
        let shown: Vec<String> = events.iter().map(shown).collect();
        assert_eq!(shown, expected);
    }

    /// Formats a thought in brackets, and a text with its token ids.
    fn shown(event: &ResponseEvent) -> String {
        match event {
            ResponseEvent::Thought { index: 3, text } => format!("({text})"),
            ResponseEvent::Text { index: 3, text, tokens } => {
                let ids = tokens.iter().map(|it| it.token.token.0.to_string());
                format!("{text} {}", ids.collect::<Vec<_>>().join(","))
            }
            other => panic!("not expected: {other:?}"),
        }
    }

    #[test]
    fn tokens_are_those_of_the_text() {
        use AnswerStart::{Open, Text, Thought};
        check(Text, &["a", "b"], "", (&["a 0", "b 1"], 2, 0));
        check(Text, &["a", "", "bc"], "", (&["a 0", "bc 1,2"], 3, 0));
        check(Text, &["a", ""], "b", (&["a 0", "b 1"], 2, 0));
        check(Text, &["a", ""], "", (&["a 0", " 1"], 2, 0));
        check(Open, &[" ", "<", "b"], "", (&[" <b 0,1,2"], 3, 0));
        check(Open, &[" "], "", (&["  0"], 1, 0));
        let thought = ["<think>", "a", "\n", "</think>", "\n\n", "b", "c"];
        check(Open, &thought, "", (&["(a)", "b 5", "c 6"], 7, 4));
        check(Thought, &["a", "</think>", "b"], "", (&["(a)", "b 2"], 3, 2));
        check(Thought, &["a", "b "], "", (&["(a)", "(b)"], 2, 2));
        check(Thought, &["a</think>b"], "", (&["(a)", "b 0"], 1, 1));
        check(Thought, &["a", "</think>", "\n"], "", (&["(a)"], 3, 2));
        check(Text, &[], "", (&[], 0, 0));
    }

    #[test]
    fn the_end_token_is_listed_unless_a_call_ends_the_answer() {
        let token = TokenText { token: TokenId(9), text: String::new(), bytes: Vec::new() };
        let score = TokenLogprob { token, logprob: Some(-1.0), top: Vec::new() };
        let ended = |text: &str, rest: &str| {
            let mut answer = calling();
            answer.token(TokenId(1), text, None);
            answer.end_token(score.clone());
            let events = answer.end(rest, Reason::End);
            events[..events.len() - 1].iter().map(shown).collect::<Vec<_>>()
        };
        assert_eq!(ended("", ""), [" 9"]);
        assert_eq!(ended("a", ""), [" 9"]);
        assert_eq!(ended("a", "b"), ["b 9"]);
        assert!(ended(&format!("a{}", call("f")), "").is_empty());
    }

    #[test]
    fn tokens_of_headers_are_not_tokens_of_the_text() {
        let check = |texts: &[&str], expected: (&[&str], usize, usize)| {
            let harmony = ThoughtFormat::all().find(|it| it.title == "harmony").unwrap();
            check_read(AnswerReader::new(AnswerStart::Open, harmony), texts, "", expected);
        };
        let thought = ["<|channel|>", "analysis", "<|message|>", "a", "<|end|>"];
        let text = ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "b", " <"];
        // Text that may become a marker comes at the end; its token came with the text before it.
        let all = [&thought[..], &text].concat();
        check(&all, (&["(a)", "b 10", "  11", "< "], 12, 3));
        check(&["<|channel|>", "fin"], (&[], 2, 0));
        check(&["No", " header"], (&["No 0", " header 1"], 2, 0));
    }

    #[test]
    fn calls_have_numbers_and_ids() {
        let mut answer = calling();
        let begun = |call_idx, id: &str, name: &str| ResponseEvent::CallBegun {
            index: 3,
            call_idx,
            id: id.into(),
            name: name.into(),
        };
        let arguments =
            |call_idx| ResponseEvent::CallArguments { index: 3, call_idx, text: "{}".into() };
        let expected = [
            ResponseEvent::Text { index: 3, text: "T".into(), tokens: Vec::new() },
            begun(0, "call_a_3_0", "f"),
            arguments(0),
            ResponseEvent::CallEnded { index: 3, call_idx: 0 },
            begun(1, "call_a_3_1", "g"),
            arguments(1),
            ResponseEvent::CallEnded { index: 3, call_idx: 1 },
        ];
        let text = format!("T{}{}", call("f"), call("g"));
        assert_eq!(answer.token(TokenId(1), &text, None), expected);
        let reason_of = |answer: &AnswerEvents, reason| match answer.clone().end("", reason).pop() {
            Some(ResponseEvent::Finished { reason, .. }) => reason,
            other => panic!("not the end: {other:?}"),
        };
        assert_eq!(reason_of(&answer, Reason::Length), Reason::Length);
        assert_eq!(reason_of(&answer, Reason::End), Reason::Calls);
        // An answer with a cut call is not complete, whatever follows it.
        let cut = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": tru e}}</tool_call>";
        answer.token(TokenId(2), cut, None);
        answer.token(TokenId(3), &call("f"), None);
        assert_eq!(reason_of(&answer, Reason::End), Reason::Length);
        // Nor is an answer with a stop string within a call.
        assert_eq!(reason_of(&answer, Reason::Stop("\n".into())), Reason::Length);
    }
}
