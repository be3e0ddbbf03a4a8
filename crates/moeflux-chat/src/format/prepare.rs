//! The tokens of a conversation's prompt, with calls of earlier answers as they were sampled.
//!
//! A template writes the calls of an earlier answer with its own whitespace and order of keys. The
//! sampled tokens replace that text, so the tokens after them need not be processed again.
//! **Invariant:** outside calls, the tokens are those of the rendered text; inside a call only
//! whitespace and the order of keys may differ; and each replayed answer follows the tokens after
//! which it was sampled.

use std::ops::Range;
use std::sync::Arc;

use moeflux::{Result, TextLimit, TokenId, Tokenizer};

use crate::answer_reader::{AnswerReader, AnswerStart};
use crate::conversation::{Assistant, Call, Conversation, Ending, Tool, Turn};
use crate::format::ChatFormat;
use crate::options::ChatOptions;
use crate::piece::{AnswerPiece, AnswerStage};
use crate::replay::{CachedAnswer, ReplayCache, TokenizedPrompt, is_same_content};

/// Kept answers that may replace a turn.
struct ReplayCandidate {
    turn_idx: usize,
    answers: Vec<Arc<CachedAnswer>>,
}

/// A rendered text in tokens.
struct RenderedPrompt<'a> {
    text: &'a str,
    tokens: Vec<TokenId>,
    /// The end of each token in the text. Empty if the tokens do not spell the text.
    ends: Vec<usize>,
}

/// A prompt under construction.
struct Assembly<'a> {
    rendered: RenderedPrompt<'a>,
    tokens: Vec<TokenId>,
    /// The number of tokens of the rendered text that are in the prompt or replaced.
    n_taken: usize,
    /// Runs of tokens of the rendered text, each with the number of prompt tokens before it.
    literals: Vec<(Range<usize>, usize)>,
    replayed: Vec<Arc<CachedAnswer>>,
}

/// Reads back answers of a conversation with these tools.
struct AnswerParser<'a> {
    format: &'a ChatFormat,
    tools: &'a [Tool],
}

impl ChatFormat {
    /// Returns the tokens of a conversation's prompt. The sampled tokens of earlier answers in
    /// `replays` replace the text that the template writes, where both differ only in the spelling
    /// of calls.
    ///
    /// # Errors
    /// As [`ChatFormat::prompt`] and [`Tokenizer::encode_within`].
    pub(crate) fn prepare(
        &self,
        conversation: &Conversation,
        options: &ChatOptions,
        tokenizer: &Tokenizer,
        replays: Option<&ReplayCache>,
    ) -> Result<TokenizedPrompt> {
        let text = self.marked(conversation, options, &[])?;
        let candidates = candidates(conversation, replays);
        let places = self.places(conversation, options, (&text, &candidates));
        let mut assembly = Assembly::new(RenderedPrompt::new(&text, (tokenizer, &options.limit))?);
        if let Some(replays) = replays {
            let parser = AnswerParser { format: self, tools: &conversation.tools };
            for (candidate, place) in candidates.iter().zip(&places) {
                let mut fitting = candidate.answers.iter();
                let replays = (replays, tokenizer);
                fitting.any(|cached| assembly.replay(cached, place, &parser, replays));
            }
        }
        assembly.take_rest();
        let parts = self.parts(conversation, options, &text);
        let start = self.start(conversation, &text);
        Ok(TokenizedPrompt {
            split_points: assembly.split_points(&parts),
            start,
            key: replays.map(|it| it.key(&assembly.tokens, start)),
            tokens: assembly.tokens,
            replayed: assembly.replayed,
        })
    }

    /// Returns the ranges of the text and calls of these turns in the prompt. Turns are left out
    /// from the first one whose range cannot be determined.
    fn places(
        &self,
        conversation: &Conversation,
        options: &ChatOptions,
        (text, candidates): (&str, &[ReplayCandidate]),
    ) -> Vec<Range<usize>> {
        if candidates.is_empty() {
            return Vec::new();
        }
        let marks: Vec<(usize, String)> =
            candidates.iter().map(|it| (it.turn_idx, mark_of(it.turn_idx))).collect();
        let Ok(marked) = self.marked(conversation, options, &marks) else { return Vec::new() };
        let mut rest = marked.as_str();
        let mut places = Vec::new();
        let mut end = 0;
        for (idx, (_, mark)) in marks.iter().enumerate() {
            let Some((before, tail)) = rest.split_once(mark.as_str()) else { break };
            if !text[end..].starts_with(before) {
                break;
            }
            let begin = end + before.len();
            let next = marks.get(idx + 1).and_then(|(_, mark)| tail.split_once(mark.as_str()));
            let after = next.map_or(tail, |(after, _)| after);
            let found = if next.is_some() {
                text[begin..].find(after).filter(|_| !after.is_empty())
            } else {
                text[begin..].strip_suffix(after).map(str::len)
            };
            let Some(n_bytes) = found else { break };
            places.push(begin..begin + n_bytes);
            (rest, end) = (tail, begin + n_bytes);
        }
        places
    }
}

/// Returns the turns whose sampled tokens are known.
fn candidates(conversation: &Conversation, replays: Option<&ReplayCache>) -> Vec<ReplayCandidate> {
    let Some(replays) = replays else { return Vec::new() };
    let n_turns = conversation.turns.len() - usize::from(conversation.ending == Ending::Continue);
    let turns = conversation.turns[..n_turns].iter().enumerate();
    let candidate = |(turn_idx, turn): (usize, &Turn)| match turn {
        Turn::Assistant(turn) => {
            let answers = replays.find(turn);
            (!answers.is_empty()).then_some(ReplayCandidate { turn_idx, answers })
        }
        _ => None,
    };
    turns.filter_map(candidate).collect()
}

/// Returns a placeholder for text and calls of a turn.
fn mark_of(turn_idx: usize) -> String {
    format!("\u{b6}\u{a4}REPLAYED_TURN_{turn_idx}\u{a4}\u{b6}")
}

impl<'a> RenderedPrompt<'a> {
    fn new(text: &'a str, (tokenizer, limit): (&Tokenizer, &TextLimit)) -> Result<Self> {
        let tokens = tokenizer.encode_within(text, limit)?;
        let mut bytes = Vec::with_capacity(text.len());
        let mut ends = Vec::with_capacity(tokens.len());
        for token in &tokens {
            bytes.extend(tokenizer.token_bytes(*token));
            ends.push(bytes.len());
        }
        // Some tokenizers prepend a space to each text.
        let n_before = bytes.len().saturating_sub(text.len());
        if &bytes[n_before..] == text.as_bytes() {
            ends.iter_mut().for_each(|end| *end = end.saturating_sub(n_before));
        } else {
            ends.clear();
        }
        Ok(Self { text, tokens, ends })
    }

    /// Returns the offset of the text after the first `n_tokens` tokens; `None` if the ends are
    /// unknown.
    fn begin_of(&self, n_tokens: usize) -> Option<usize> {
        if self.ends.is_empty() {
            return None;
        }
        n_tokens.checked_sub(1).map_or(Some(0), |last| self.ends.get(last).copied())
    }

    /// Returns the number of tokens that end at or before this offset.
    fn n_tokens_within(&self, n_bytes: usize) -> usize {
        self.ends.partition_point(|end| *end <= n_bytes)
    }
}

impl<'a> Assembly<'a> {
    fn new(rendered: RenderedPrompt<'a>) -> Self {
        Self {
            rendered,
            tokens: Vec::new(),
            n_taken: 0,
            literals: Vec::new(),
            replayed: Vec::new(),
        }
    }

    /// Replaces a turn by an answer if it fits there. Returns whether it does.
    fn replay(
        &mut self,
        cached: &Arc<CachedAnswer>,
        place: &Range<usize>,
        parser: &AnswerParser<'_>,
        (replays, tokenizer): (&ReplayCache, &Tokenizer),
    ) -> bool {
        let CachedAnswer { prompt, sampled, .. } = &**cached;
        // The number of further tokens up to the end of the answer's prompt.
        let n_more = prompt.n_tokens.checked_sub(self.tokens.len());
        let Some(begin) = n_more.map(|n_more| self.n_taken + n_more) else { return false };
        let end = self.rendered.n_tokens_within(place.end);
        let (Some(begin_at), Some(end_at)) =
            (self.rendered.begin_of(begin), self.rendered.begin_of(end))
        else {
            return false;
        };
        if begin > end || begin_at > place.start || end_at != place.end {
            return false;
        }
        let written = TokenizedText {
            text: &self.rendered.text[begin_at..end_at],
            tokens: &self.rendered.tokens[begin..end],
        };
        let bytes: Vec<u8> =
            sampled.tokens.iter().flat_map(|token| tokenizer.token_bytes(*token)).collect();
        let Ok(text) = std::str::from_utf8(&bytes) else { return false };
        let spelled = TokenizedText { text, tokens: &sampled.tokens };
        if !parser.is_same(&written, &spelled, (prompt.start, tokenizer)) {
            return false;
        }
        let before = [&self.tokens[..], &self.rendered.tokens[self.n_taken..begin]].concat();
        if !replays.is_key_of(prompt, &before) {
            return false;
        }
        self.literals.push((self.n_taken..begin, self.tokens.len()));
        self.tokens = before;
        self.tokens.extend_from_slice(&sampled.tokens);
        self.n_taken = end;
        self.replayed.push(Arc::clone(cached));
        true
    }

    /// Takes the rest of the rendered text.
    fn take_rest(&mut self) {
        let rest = self.n_taken..self.rendered.tokens.len();
        self.literals.push((rest.clone(), self.tokens.len()));
        self.tokens.extend_from_slice(&self.rendered.tokens[rest]);
    }

    /// Returns the number of tokens within each of these prefixes of the text, less one, because
    /// the last token may be another one where the text continues differently.
    fn split_points(&self, parts: &[usize]) -> Vec<usize> {
        let within = |part: &usize| self.n_tokens_within(*part).saturating_sub(1);
        parts.iter().map(within).filter(|n_tokens| *n_tokens > 0).collect()
    }

    fn n_tokens_within(&self, n_bytes: usize) -> usize {
        let n_rendered = self.rendered.n_tokens_within(n_bytes);
        let first = self.literals.partition_point(|(run, _)| run.start <= n_rendered);
        let Some((run, n_before)) = first.checked_sub(1).map(|last| &self.literals[last]) else {
            return 0;
        };
        n_before + n_rendered.min(run.end) - run.start
    }
}

/// A text and its tokens.
struct TokenizedText<'a> {
    text: &'a str,
    tokens: &'a [TokenId],
}

/// An answer as returned by a reader.
struct ParsedAnswer {
    answer: Assistant,
    stage: AnswerStage,
}

impl AnswerParser<'_> {
    /// Returns whether an answer differs from the template's text only in the whitespace and key
    /// order of its calls.
    fn is_same(
        &self,
        written: &TokenizedText<'_>,
        sampled: &TokenizedText<'_>,
        (start, tokenizer): (AnswerStart, &Tokenizer),
    ) -> bool {
        if written.tokens == sampled.tokens {
            return true;
        }
        let all = |text: &str| self.parse(text, start, |reader| reader.finish());
        let (of_written, of_sampled) = (all(written.text).answer, all(sampled.text).answer);
        if of_sampled.calls.is_empty() || !is_same_answer(&of_written, &of_sampled) {
            return false;
        }
        if n_of_each_byte(written.text) != n_of_each_byte(sampled.text) {
            return false;
        }
        let tokens = written.tokens.iter().zip(sampled.tokens);
        let same = tokens.take_while(|(a, b)| a == b).map(|(token, _)| *token);
        let n_same_bytes: usize = same.map(|token| tokenizer.token_bytes(token).len()).sum();
        let Some((same, rest)) = sampled.text.split_at_checked(n_same_bytes) else { return false };
        self.is_complete_before_calls((same, rest), start, &of_sampled)
    }

    /// Returns whether thoughts and text of an answer are complete after the prefix `same`.
    fn is_complete_before_calls(
        &self,
        (same, rest): (&str, &str),
        start: AnswerStart,
        whole: &Assistant,
    ) -> bool {
        let ParsedAnswer { answer, stage } = self.parse(same, start, |_| Vec::new());
        let is_after_thoughts = match stage {
            // An empty thought may still come.
            AnswerStage::Start => !self.format.thought_format().is_in(rest),
            AnswerStage::Thought => false,
            _ => true,
        };
        is_after_thoughts
            && answer.thoughts == whole.thoughts
            && answer.text.trim_end() == whole.text.trim_end()
    }

    fn parse(
        &self,
        text: &str,
        start: AnswerStart,
        end: impl FnOnce(&mut AnswerReader) -> Vec<AnswerPiece>,
    ) -> ParsedAnswer {
        let mut reader = AnswerReader::new(start, self.format.thought_format());
        if let Some(format) = self.format.call_format() {
            reader = reader.with_calls(format, self.tools);
        }
        let mut pieces = reader.push(text);
        let stage = reader.stage();
        pieces.extend(end(&mut reader));
        ParsedAnswer { answer: collect_pieces(pieces), stage }
    }
}

/// Collects thoughts, text and complete calls. The model's own call ids are part of the spelling
/// and ignored.
fn collect_pieces(pieces: Vec<AnswerPiece>) -> Assistant {
    let mut answer = Assistant::default();
    let mut call: Option<(String, String)> = None;
    for piece in pieces {
        match piece {
            AnswerPiece::Thought(text) => answer.thoughts.get_or_insert_default().push_str(&text),
            AnswerPiece::Text(text) => answer.text.push_str(&text),
            AnswerPiece::Call { name, .. } => call = Some((name, String::new())),
            AnswerPiece::Arguments(text) => {
                if let Some((_, arguments)) = &mut call {
                    arguments.push_str(&text);
                }
            }
            AnswerPiece::CallEnd => {
                let whole = call.take();
                answer.calls.extend(
                    whole.map(|(name, arguments)| Call::from_text(String::new(), name, &arguments)),
                );
            }
            AnswerPiece::CallCut => {}
        }
    }
    answer
}

/// Returns whether two answers have the same thoughts, text and calls.
fn is_same_answer(a: &Assistant, b: &Assistant) -> bool {
    a.thoughts == b.thoughts && is_same_content(a, b)
}

/// Counts each byte except whitespace.
fn n_of_each_byte(text: &str) -> [usize; 256] {
    let mut n_of_each = [0; 256];
    for byte in text.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        n_of_each[usize::from(byte)] += 1;
    }
    n_of_each
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conversation::ToolResult;
    use crate::format::tests::{TEMPLATES, format_named, options};
    use crate::replay::SampledAnswer;
    use crate::testing::byte_tokenizer;

    /// Creates a tokenizer of bytes and the markers of a format.
    fn tokenizer() -> Tokenizer {
        byte_tokenizer(&["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"])
    }

    fn tools() -> Vec<Tool> {
        let parameters = json!({"type": "object", "properties": {
            "a": {"type": "number"}, "b": {"type": "string"}}});
        vec![Tool::function("f".into(), None, Some(parameters))]
    }

    fn call(id: &str, arguments: &str) -> Call {
        Call::from_text(id.into(), "f".into(), arguments)
    }

    fn result(id: &str) -> Turn {
        Turn::Tool(ToolResult { call_id: id.into(), name: None, text: "R".into() })
    }

    /// A conversation over several turns whose answers are kept.
    struct ReplayHarness {
        format: ChatFormat,
        tokenizer: Tokenizer,
        replays: ReplayCache,
        conversation: Conversation,
        session_tokens: Vec<TokenId>,
    }

    impl ReplayHarness {
        fn new(name: &str) -> Self {
            let turns = vec![Turn::User("Look.".into())];
            let conversation = Conversation { turns, tools: tools(), ..Conversation::default() };
            let (format, replays) = (format_named(name), ReplayCache::new(1 << 20));
            Self {
                format,
                tokenizer: tokenizer(),
                replays,
                conversation,
                session_tokens: Vec::new(),
            }
        }

        fn prepare(&self) -> TokenizedPrompt {
            let (conversation, replays) = (&self.conversation, Some(&self.replays));
            self.format.prepare(conversation, &options(), &self.tokenizer, replays).unwrap()
        }

        /// Keeps an answer with whitespace before its calls that no template writes.
        fn answer(&mut self, prepared: TokenizedPrompt, answer: &Assistant) {
            let thoughts = match &answer.thoughts {
                Some(thoughts) if prepared.start == AnswerStart::Thought => {
                    format!("{thoughts}\n\n</think>")
                }
                Some(thoughts) => format!("<think>\n{thoughts}\n</think>\n\n"),
                None => String::new(),
            };
            let written = self.format.call_format().and_then(|it| it.written(&answer.calls, 0));
            let written = written.map_or_else(String::new, |written| format!(" \n{written}"));
            let text = format!("{thoughts}{}{written}", answer.text);
            let tokens = self.tokenizer.encode(&text).unwrap();
            self.session_tokens = [&prepared.tokens[..], &tokens].concat();
            let sampled = SampledAnswer { answer: answer.clone(), tokens };
            self.replays.keep(prepared.key.unwrap(), None, sampled);
        }

        /// Appends this turn, as the client sends it, and the turn after it.
        fn send_back(&mut self, turn: Assistant, after: Turn) -> TokenizedPrompt {
            self.conversation.turns.extend([Turn::Assistant(turn), after]);
            self.prepare()
        }
    }

    fn assistant(thoughts: Option<&str>, text: &str, calls: Vec<Call>) -> Assistant {
        Assistant { thoughts: thoughts.map(str::to_owned), text: text.into(), calls }
    }

    /// Runs a call, its result, an answer and a question. Returns the number of replayed turns
    /// after the result and after the question.
    fn replayed(name: &str, (thoughts, text): (Option<&str>, &str)) -> [usize; 2] {
        let mut harness = ReplayHarness::new(name);
        let prepared = harness.prepare();
        assert_eq!(prepared.n_replayed(), 0);
        let first = call("c0", r#"{"b": "x", "a": 1}"#);
        harness.answer(prepared, &assistant(thoughts, text, vec![first]));
        // The keys have another order.
        let returned = call("c0", r#"{"a": 1, "b": "x"}"#);
        let second = harness.send_back(assistant(thoughts, text, vec![returned]), result("c0"));
        if second.n_replayed() > 0 {
            assert!(second.tokens.starts_with(&harness.session_tokens), "{name}");
            let rest = harness.tokenizer.decode(&second.tokens[harness.session_tokens.len()..]);
            assert!(rest.contains('R') && !rest.contains("tool_call>"), "{name}: {rest}");
            let last = *second.split_points.last().unwrap();
            let is_after = last > harness.session_tokens.len() && last <= second.tokens.len();
            assert!(is_after || thoughts.is_some(), "{name}: {last}");
        }
        let n_then = second.n_replayed();
        harness.answer(second, &assistant(None, "It is R.", Vec::new()));
        let third =
            harness.send_back(assistant(None, "It is R.", Vec::new()), Turn::User("So?".into()));
        assert_eq!(
            third.tokens.starts_with(&harness.session_tokens),
            third.n_replayed() == n_then + 1,
            "{name}"
        );
        [n_then, third.n_replayed()]
    }

    #[test]
    fn answers_come_back_as_they_were_sampled() {
        for name in ["qwen3", "kimi_k2"] {
            assert_eq!(replayed(name, (None, "I look.")), [1, 2], "{name}");
            assert_eq!(replayed(name, (None, "")), [1, 2], "{name}");
        }
        // This template writes calls without the text before them.
        assert_eq!(replayed("llama3", (None, "")), [1, 2]);
        assert_eq!(replayed("llama3", (None, "I look.")), [0, 1]);
        // This template writes an empty thought before every answer without thoughts.
        assert_eq!(replayed("glm4_moe", (None, "I look.")), [0, 0]);
        // This template omits arguments if there is text, so its output has other content.
        assert_eq!(replayed("deepseek_v3", (None, "")), [1, 2]);
        assert_eq!(replayed("deepseek_v3", (None, "I look.")), [0, 1]);
        // This template shows thoughts up to the next question, and none of earlier ones.
        assert_eq!(replayed("qwen3", (Some("Which?"), "I look.")), [1, 0]);
        // This template opens a thought that its history does not show.
        assert_eq!(replayed("qwen3_5", (Some("Which?"), "I look.")), [0, 0]);
    }

    #[test]
    fn turns_that_differ_are_not_replayed() {
        let first = assistant(None, "I look.", vec![call("c0", r#"{"a": 1}"#)]);
        let check = |change: &dyn Fn(&mut ReplayHarness, &mut Assistant)| {
            let mut harness = ReplayHarness::new("qwen3");
            let prepared = harness.prepare();
            harness.answer(prepared, &first);
            let mut turn = first.clone();
            change(&mut harness, &mut turn);
            let prepared = harness.send_back(turn, result("c0"));
            let plain = harness.format.prompt(&harness.conversation, &options()).unwrap();
            let plain = plain.tokens(&harness.tokenizer).unwrap();
            assert_eq!(prepared.tokens == plain, prepared.n_replayed() == 0);
            prepared.n_replayed()
        };
        assert_eq!(check(&|_, _| {}), 1);
        assert_eq!(check(&|_, turn| turn.text = "I looked.".into()), 0);
        assert_eq!(check(&|_, turn| turn.calls[0] = call("c0", r#"{"a": 2}"#)), 0);
        assert_eq!(check(&|_, turn| turn.calls[0] = call("c1", r#"{"a": 1}"#)), 0);
        assert_eq!(check(&|_, turn| turn.thoughts = Some("Hm.".into())), 0);
        assert_eq!(
            check(&|harness, _| harness.conversation.turns[0] = Turn::User("Lock.".into())),
            0
        );
        assert_eq!(
            check(&|harness, _| harness.conversation.turns[0] = Turn::User("Look!!".into())),
            0
        );
        assert_eq!(check(&|harness, _| harness.replays = ReplayCache::new(1 << 20)), 0);
    }

    #[test]
    fn without_replays_the_tokens_are_those_of_the_text() {
        for (name, _) in TEMPLATES {
            let mut harness = ReplayHarness::new(name);
            harness.conversation.turns.push(Turn::Assistant(assistant(None, "A", Vec::new())));
            harness.conversation.turns.push(Turn::User("B".into()));
            let prepared = harness.prepare();
            let plain = harness.format.prompt(&harness.conversation, &options()).unwrap();
            assert_eq!(prepared.tokens, plain.tokens(&harness.tokenizer).unwrap());
            assert_eq!((prepared.start, prepared.n_replayed()), (plain.start, 0));
            let (conversation, options) = (&harness.conversation, &options());
            let off =
                harness.format.prepare(conversation, options, &harness.tokenizer, None).unwrap();
            assert_eq!((off.tokens, off.split_points), (prepared.tokens, prepared.split_points));
            assert_eq!(off.key, None);
        }
    }
}
