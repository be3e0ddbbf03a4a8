//! What the engine chose, token by token, into the events of one answer.
//!
//! **Invariant:** every token but the one that ends the answer is counted once, as thought or not.
//! The tokens that [`Event::Text`] lists are those of the text, in order, whether it comes with
//! them or later, and behind these the token that ended the answer. Tokens of thoughts, of the
//! blank space behind them, of headers of messages and of calls are not listed.

use moeflux::{TokenId, Tokenizer};
use moeflux_chat::{AnswerReader, HiddenMarkers, Piece, Stage};
use moeflux_schedule::Scored;

use crate::wire::event::{Event, Reason, TokenLogprob, TokenText, Usage};

/// One answer while it is made.
#[derive(Clone, Debug)]
pub struct AnswerEvents {
    index: usize,
    reader: AnswerReader,
    markers: HiddenMarkers,
    /// Tokens whose text is held back.
    waiting: Vec<TokenLogprob>,
    usage: Usage,
    /// What the ids of its calls begin with.
    call_stem: String,
    n_calls: usize,
    is_in_call: bool,
    /// Whether a call broke off in a way that cannot be mended.
    has_cut_call: bool,
}

impl AnswerEvents {
    /// The answer with this number, to a prompt that took `usage`. What `reader` makes of the text
    /// comes out; ids of calls are `call_stem` with two numbers.
    #[must_use]
    pub fn new(
        index: usize,
        reader: AnswerReader,
        markers: HiddenMarkers,
        usage: Usage,
        call_stem: &str,
    ) -> Self {
        Self {
            index,
            reader,
            markers,
            waiting: Vec::new(),
            usage,
            call_stem: call_stem.to_owned(),
            n_calls: 0,
            is_in_call: false,
            has_cut_call: false,
        }
    }

    /// What a token adds that does not end the answer; `text` became certain with it.
    pub fn chosen(&mut self, tokenizer: &Tokenizer, token: &Scored, text: &str) -> Vec<Event> {
        let score = token.logprob.is_some().then(|| scored(tokenizer, token));
        self.token(token.token, text, score)
    }

    /// The token that ends the answer, with its log-probability.
    pub fn ended_by(&mut self, tokenizer: &Tokenizer, token: &Scored) {
        self.end_token(scored(tokenizer, token));
    }

    /// Behind calls it is no more of the text than their tokens.
    fn end_token(&mut self, score: TokenLogprob) {
        if self.n_calls == 0 {
            self.waiting.push(score);
        }
    }

    /// The end, with the text that the engine held back.
    pub fn end(&mut self, rest: &str, reason: Reason) -> Vec<Event> {
        let mut pieces = self.reader.push(rest);
        let rest = if matches!(reason, Reason::End) {
            self.reader.finish()
        } else {
            self.reader.finish_cut()
        };
        pieces.extend(rest);
        let mut events = self.events(pieces);
        let tokens = std::mem::take(&mut self.waiting);
        let is_in_text = matches!(self.reader.stage(), Stage::Start | Stage::Text);
        if !tokens.is_empty() && is_in_text && !self.is_in_call {
            events.push(Event::Text { index: self.index, text: String::new(), tokens });
        }
        let reason = match reason {
            // Half a call must not pass for a whole one.
            Reason::End | Reason::Stop(_) if self.has_cut_call => Reason::Length,
            Reason::End if self.n_calls > 0 => Reason::Calls,
            other => other,
        };
        events.push(Event::Finished { index: self.index, reason, usage: self.usage });
        events
    }

    fn token(&mut self, token: TokenId, text: &str, score: Option<TokenLogprob>) -> Vec<Event> {
        let before = self.reader.stage();
        self.waiting.extend(score);
        let pieces = self.reader.push(self.markers.text(token).unwrap_or(text));
        let stage = self.reader.stage();
        self.usage.n_answer_tokens += 1;
        if before == Stage::Thought || stage == Stage::Thought {
            self.usage.n_thought_tokens += 1;
        }
        let events = self.events(pieces);
        let is_text = !matches!(stage, Stage::Thought | Stage::BehindThought | Stage::Header);
        // The last marker of a header is no part of the text behind it.
        if self.is_in_call || !is_text || before == Stage::Header {
            self.waiting.clear();
        }
        events
    }

    fn events(&mut self, pieces: Vec<Piece>) -> Vec<Event> {
        pieces.into_iter().filter_map(|piece| self.event(piece)).collect()
    }

    fn event(&mut self, piece: Piece) -> Option<Event> {
        let index = self.index;
        match piece {
            Piece::Thought(text) => Some(Event::Thought { index, text }),
            Piece::Text(text) => {
                Some(Event::Text { index, text, tokens: std::mem::take(&mut self.waiting) })
            }
            Piece::Call { name, .. } => {
                let call_idx = self.n_calls;
                self.n_calls += 1;
                self.is_in_call = true;
                let id = format!("{}_{index}_{call_idx}", self.call_stem);
                Some(Event::CallBegun { index, call_idx, id, name })
            }
            Piece::Arguments(text) => {
                Some(Event::CallArguments { index, call_idx: self.call_idx(), text })
            }
            Piece::CallEnd => {
                self.is_in_call = false;
                // Those of its last marker.
                self.waiting.clear();
                Some(Event::CallEnded { index, call_idx: self.call_idx() })
            }
            Piece::CallCut => {
                self.is_in_call = false;
                self.has_cut_call = true;
                self.waiting.clear();
                None
            }
            _ => None,
        }
    }

    fn call_idx(&self) -> usize {
        assert!(self.n_calls > 0, "arguments come behind the start of their call");
        self.n_calls - 1
    }
}

/// A token with its likelihood and that of others. An echoed prompt has these, too.
#[must_use]
pub fn scored(tokenizer: &Tokenizer, token: &Scored) -> TokenLogprob {
    let seen = |token| TokenText {
        token,
        text: tokenizer.token_text(token).unwrap_or_default(),
        bytes: tokenizer.token_bytes(token),
    };
    let top = token.top.iter().map(|(token, logprob)| (seen(*token), *logprob)).collect();
    TokenLogprob { token: seen(token.token), logprob: token.logprob, top }
}

#[cfg(test)]
mod tests {
    use moeflux_chat::{AnswerStart, ThoughtFormat};

    use super::*;

    const PROMPT: Usage = Usage { n_prompt_tokens: 12, n_cached_tokens: 8, ..Usage::NONE };

    /// Tokens with their texts, and the text that is held back; what comes out, and what is
    /// counted: answer, thought.
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
        let mut answer = AnswerEvents::new(3, reader, HiddenMarkers::default(), PROMPT, "call");
        let mut events = Vec::new();
        for (id, text) in (0..).zip(texts) {
            let token = TokenText { token: TokenId(id), text: String::new(), bytes: Vec::new() };
            let score = TokenLogprob { token, logprob: Some(-1.0), top: Vec::new() };
            events.extend(answer.token(TokenId(id), text, Some(score)));
        }
        events.extend(answer.end(rest, Reason::End));
        let usage = Usage { n_answer_tokens, n_thought_tokens, ..PROMPT };
        let last = Event::Finished { index: 3, reason: Reason::End, usage };
        assert_eq!(events.pop(), Some(last));
        let shown: Vec<String> = events.iter().map(shown).collect();
        assert_eq!(shown, expected);
    }

    /// A thought in brackets; a text with the numbers of its tokens.
    fn shown(event: &Event) -> String {
        match event {
            Event::Thought { index: 3, text } => format!("({text})"),
            Event::Text { index: 3, text, tokens } => {
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
    fn the_token_at_the_end_is_listed_behind_a_text_alone() {
        let token = TokenText { token: TokenId(9), text: String::new(), bytes: Vec::new() };
        let score = TokenLogprob { token, logprob: Some(-1.0), top: Vec::new() };
        let ended = |pieces: Vec<Piece>, rest: &str| {
            let reader = AnswerReader::new(AnswerStart::Text, ThoughtFormat::usual());
            let mut answer = AnswerEvents::new(3, reader, HiddenMarkers::default(), PROMPT, "call");
            answer.events(pieces);
            answer.end_token(score.clone());
            let events = answer.end(rest, Reason::End);
            events[..events.len() - 1].iter().map(shown).collect::<Vec<_>>()
        };
        assert_eq!(ended(Vec::new(), ""), [" 9"]);
        assert_eq!(ended(vec![Piece::Text("a".into())], ""), [" 9"]);
        assert_eq!(ended(vec![Piece::Text("a".into())], "b"), ["b 9"]);
        let call = Piece::Call { name: "f".into(), id: None };
        assert!(ended(vec![Piece::Text("a".into()), call, Piece::CallEnd], "").is_empty());
    }

    #[test]
    fn tokens_of_headers_are_no_tokens_of_the_text() {
        let check = |texts: &[&str], expected: (&[&str], usize, usize)| {
            let harmony = ThoughtFormat::all().find(|it| it.title == "harmony").unwrap();
            check_read(AnswerReader::new(AnswerStart::Open, harmony), texts, "", expected);
        };
        let thought = ["<|channel|>", "analysis", "<|message|>", "a", "<|end|>"];
        let text = ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "b", " <"];
        // What may become a marker comes with the end, and its token came with the rest of it.
        let all = [&thought[..], &text].concat();
        check(&all, (&["(a)", "b 10", "  11", "< "], 12, 3));
        check(&["<|channel|>", "fin"], (&[], 2, 0));
        check(&["No", " header"], (&["No 0", " header 1"], 2, 0));
    }

    #[test]
    fn calls_have_numbers_and_ids() {
        let reader = AnswerReader::new(AnswerStart::Text, ThoughtFormat::usual());
        let mut answer = AnswerEvents::new(3, reader, HiddenMarkers::default(), PROMPT, "call_a");
        let call = |name: &str| Piece::Call { name: name.into(), id: None };
        let pieces = vec![
            Piece::Text("T".into()),
            call("f"),
            Piece::Arguments("{}".into()),
            Piece::CallEnd,
            call("g"),
            Piece::CallEnd,
        ];
        let begun = |call_idx, id: &str, name: &str| Event::CallBegun {
            index: 3,
            call_idx,
            id: id.into(),
            name: name.into(),
        };
        let expected = [
            Event::Text { index: 3, text: "T".into(), tokens: Vec::new() },
            begun(0, "call_a_3_0", "f"),
            Event::CallArguments { index: 3, call_idx: 0, text: "{}".into() },
            Event::CallEnded { index: 3, call_idx: 0 },
            begun(1, "call_a_3_1", "g"),
            Event::CallEnded { index: 3, call_idx: 1 },
        ];
        assert_eq!(answer.events(pieces), expected);
        let finished = |reason| vec![Event::Finished { index: 3, reason, usage: PROMPT }];
        assert_eq!(answer.clone().end("", Reason::Length), finished(Reason::Length));
        assert_eq!(answer.clone().end("", Reason::End), finished(Reason::Calls));
        // Half a call makes no whole answer, whatever comes behind it.
        answer.events(vec![call("f"), Piece::CallCut, call("g")]);
        answer.events(vec![Piece::Arguments("{}".into()), Piece::CallEnd]);
        assert_eq!(answer.clone().end("", Reason::End), finished(Reason::Length));
        // Nor does a stop string that comes up within one.
        assert_eq!(answer.end("", Reason::Stop("\n".into())), finished(Reason::Length));
    }
}
