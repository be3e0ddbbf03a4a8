//! The tokens of a conversation's prompt, with what was sampled in the places of earlier answers.
//!
//! Where an answer stands in a rendered prompt is found by rendering the conversation once more
//! with marks in its place. **Invariant:** without replays the tokens are those of the rendered
//! text; and with them, each replayed answer stands behind the tokens that it was sampled behind.

use std::ops::Range;
use std::sync::Arc;

use moeflux::{Result, TextLimit, TokenId, Tokenizer};

use crate::answer::{AnswerReader, AnswerStart};
use crate::conversation::{Assistant, Call, Conversation, Ending, Tool, Turn};
use crate::format::{ChatFormat, ChatOptions};
use crate::piece::Piece;
use crate::replay::{Kept, Prepared, Replays, is_same_said};

/// An answer that may stand in the place of a turn.
struct Candidate {
    turn_idx: usize,
    kept: Vec<Arc<Kept>>,
}

/// A prompt while it is put together.
struct Assembly<'a> {
    tokenizer: &'a Tokenizer,
    limit: &'a TextLimit,
    text: &'a str,
    tokens: Vec<TokenId>,
    /// Bytes of the text that these stand for.
    n_bytes: usize,
    /// Up to where the rendered text has become tokens.
    end: usize,
    /// Parts of the rendered text with the number of tokens before each.
    literals: Vec<(Range<usize>, usize)>,
    replayed: Vec<Arc<Kept>>,
}

impl ChatFormat {
    /// The tokens of a conversation's prompt. Where `replays` has what was sampled for earlier
    /// answers, that stands in their places.
    ///
    /// # Errors
    /// As [`ChatFormat::prompt`] and [`Tokenizer::encode_within`].
    pub fn prepare(
        &self,
        conversation: &Conversation,
        options: &ChatOptions,
        tokenizer: &Tokenizer,
        replays: Option<&Replays>,
    ) -> Result<Prepared> {
        let mut candidates = candidates(conversation, replays);
        // Those that do not fit are left out, and with them the thoughts that they would add.
        while let Some(replays) = replays.filter(|_| !candidates.is_empty()) {
            let n_before = candidates.len();
            let restored = restored(conversation, &candidates);
            let text = self.marked(&restored, options, &[])?;
            let places = self.places(&restored, options, (&text, &candidates));
            let mut assembly = Assembly::new((tokenizer, &options.limit), &text);
            let read_back = |said: &str| self.read_back(said, &conversation.tools);
            candidates = assembly.replay((candidates, places), replays, &read_back)?;
            if candidates.len() < n_before {
                continue;
            }
            if !assembly.literal(text.len())? {
                break;
            }
            return Ok(self.prepared(assembly, (&restored, options), Some(replays)));
        }
        let text = self.marked(conversation, options, &[])?;
        let mut assembly = Assembly::new((tokenizer, &options.limit), &text);
        assembly.literal(text.len())?;
        Ok(self.prepared(assembly, (conversation, options), replays))
    }

    fn prepared(
        &self,
        assembly: Assembly<'_>,
        (conversation, options): (&Conversation, &ChatOptions),
        replays: Option<&Replays>,
    ) -> Prepared {
        let text = assembly.text;
        let parts = self.parts(conversation, options, text);
        Prepared {
            parts_at: assembly.parts_at(&parts),
            start: self.start(conversation, text),
            key: replays.map(|it| it.key(&assembly.tokens, assembly.n_bytes, text)),
            tokens: assembly.tokens,
            replayed: assembly.replayed,
        }
    }

    /// Where the text and the calls of these turns stand in the prompt; those behind a place that
    /// cannot be told are left out.
    fn places(
        &self,
        conversation: &Conversation,
        options: &ChatOptions,
        (text, candidates): (&str, &[Candidate]),
    ) -> Vec<Range<usize>> {
        let marks: Vec<(usize, String)> =
            candidates.iter().map(|it| (it.turn_idx, mark_of(it.turn_idx))).collect();
        let Ok(marked) = self.marked(conversation, options, &marks) else { return Vec::new() };
        let mut rest = marked.as_str();
        let mut places = Vec::new();
        let mut end = 0;
        for (idx, (_, mark)) in marks.iter().enumerate() {
            let Some((before, behind)) = rest.split_once(mark.as_str()) else { break };
            if !text[end..].starts_with(before) {
                break;
            }
            let begin = end + before.len();
            let next = marks.get(idx + 1).and_then(|(_, mark)| behind.split_once(mark.as_str()));
            let after = next.map_or(behind, |(after, _)| after);
            let found = if next.is_some() {
                text[begin..].find(after).filter(|_| !after.is_empty())
            } else {
                text[begin..].strip_suffix(after).map(str::len)
            };
            let Some(n_bytes) = found else { break };
            places.push(begin..begin + n_bytes);
            (rest, end) = (behind, begin + n_bytes);
        }
        places
    }

    /// What a reader makes of text and calls that a template wrote.
    fn read_back(&self, said: &str, tools: &[Tool]) -> Assistant {
        let mut reader = AnswerReader::new(AnswerStart::Text, self.thought_format());
        if let Some(format) = self.call_format() {
            reader = reader.with_calls(format, tools);
        }
        let mut pieces = reader.push(said);
        pieces.extend(reader.finish());
        said_in(pieces)
    }
}

/// The turns of which it is known what was sampled.
fn candidates(conversation: &Conversation, replays: Option<&Replays>) -> Vec<Candidate> {
    let Some(replays) = replays else { return Vec::new() };
    let n_turns = conversation.turns.len() - usize::from(conversation.ending == Ending::Continue);
    let turns = conversation.turns[..n_turns].iter().enumerate();
    let candidate = |(turn_idx, turn): (usize, &Turn)| match turn {
        Turn::Assistant(turn) => {
            let kept = replays.find(turn);
            (!kept.is_empty()).then_some(Candidate { turn_idx, kept })
        }
        _ => None,
    };
    turns.filter_map(candidate).collect()
}

/// The conversation with the thoughts that the client left out.
fn restored(conversation: &Conversation, candidates: &[Candidate]) -> Conversation {
    let mut restored = conversation.clone();
    for Candidate { turn_idx, kept } in candidates {
        if let Turn::Assistant(turn) = &mut restored.turns[*turn_idx] {
            let thoughts = &kept[0].sampled.answer.thoughts;
            turn.thoughts = turn.thoughts.take().or_else(|| thoughts.clone());
        }
    }
    restored
}

/// Stands for text and calls of a turn.
fn mark_of(turn_idx: usize) -> String {
    format!("\u{b6}\u{a4}REPLAYED_TURN_{turn_idx}\u{a4}\u{b6}")
}

/// Text and calls; a call that is not whole is none.
fn said_in(pieces: Vec<Piece>) -> Assistant {
    let mut said = Assistant::default();
    let mut call: Option<(String, String)> = None;
    for piece in pieces {
        match piece {
            Piece::Text(text) => said.text.push_str(&text),
            Piece::Call { name, .. } => call = Some((name, String::new())),
            Piece::Arguments(text) => {
                if let Some((_, arguments)) = &mut call {
                    arguments.push_str(&text);
                }
            }
            Piece::CallEnd => {
                let whole = call.take();
                said.calls.extend(
                    whole.map(|(name, arguments)| Call::from_text(String::new(), name, &arguments)),
                );
            }
            Piece::CallCut | Piece::Thought(_) => {}
        }
    }
    said
}

impl<'a> Assembly<'a> {
    fn new((tokenizer, limit): (&'a Tokenizer, &'a TextLimit), text: &'a str) -> Self {
        let (tokens, literals, replayed) = (Vec::new(), Vec::new(), Vec::new());
        Self { tokenizer, limit, text, tokens, n_bytes: 0, end: 0, literals, replayed }
    }

    /// Puts answers in their places; returns those that fit.
    fn replay(
        &mut self,
        (candidates, places): (Vec<Candidate>, Vec<Range<usize>>),
        replays: &Replays,
        read_back: &dyn Fn(&str) -> Assistant,
    ) -> Result<Vec<Candidate>> {
        let mut fitting = Vec::new();
        for (candidate, place) in candidates.into_iter().zip(places) {
            let said = read_back(&self.text[place.clone()]);
            let mut fits = None;
            for kept in &candidate.kept {
                if is_same_said(&said, &kept.sampled.answer) && self.fits(kept, &place, replays)? {
                    fits = Some(Arc::clone(kept));
                    break;
                }
            }
            if let Some(kept) = fits {
                self.tokens.extend_from_slice(&kept.sampled.tokens);
                self.n_bytes += kept.sampled.n_text_bytes;
                self.end = place.end;
                self.replayed.push(Arc::clone(&kept));
                fitting.push(Candidate { kept: vec![kept], ..candidate });
            }
        }
        Ok(fitting)
    }

    /// Whether the prompt up to here is the one of this answer: then its text has become tokens.
    fn fits(&mut self, kept: &Kept, place: &Range<usize>, replays: &Replays) -> Result<bool> {
        let key = &kept.prompt;
        let before = &self.text[self.end..place.start];
        let Some(tail_at) = before.rfind(&key.tail) else { return Ok(false) };
        let end = self.end + tail_at + key.tail.len();
        // What the template does not show of earlier thoughts is not to be read again.
        let thoughts = kept.sampled.answer.thoughts.as_deref().unwrap_or_default();
        let is_shown = self.text[end..place.start].contains(thoughts.trim());
        if !is_shown || self.n_bytes + (end - self.end) != key.n_bytes {
            return Ok(false);
        }
        let state = (self.tokens.len(), self.n_bytes, self.end, self.literals.len());
        if self.literal(end)? && replays.is_key_of(key, &self.tokens) {
            return Ok(true);
        }
        let (n_tokens, n_literals);
        (n_tokens, self.n_bytes, self.end, n_literals) = state;
        self.tokens.truncate(n_tokens);
        self.literals.truncate(n_literals);
        Ok(false)
    }

    /// The rendered text becomes tokens up to here. Whether they may stand behind others: some
    /// tokenizers write a blank before each text, and so would change what stands in the middle.
    fn literal(&mut self, end: usize) -> Result<bool> {
        let range = self.end..end;
        let text = &self.text[range.clone()];
        let tokens = self.tokenizer.encode_within(text, self.limit)?;
        let is_spelled = || {
            let bytes = tokens.iter().flat_map(|token| self.tokenizer.token_bytes(*token));
            bytes.eq(text.bytes())
        };
        let is_right = self.tokens.is_empty() || is_spelled();
        self.literals.push((range, self.tokens.len()));
        self.n_bytes += text.len();
        self.end = end;
        self.tokens.extend(tokens);
        Ok(is_right)
    }

    /// How many tokens lie within each of the first parts of the text: one less, as the last of
    /// them may be another one where the text goes on differently.
    fn parts_at(&self, parts: &[usize]) -> Vec<usize> {
        let within = |part: &usize| self.n_tokens_within(*part).saturating_sub(1);
        parts.iter().map(within).filter(|n_tokens| *n_tokens > 0).collect()
    }

    fn n_tokens_within(&self, n_bytes: usize) -> usize {
        let first = self.literals.partition_point(|(range, _)| range.start < n_bytes);
        let Some(last) = first.checked_sub(1) else { return 0 };
        let (range, n_before) = &self.literals[last];
        let mut end = range.start;
        let mut n_tokens = *n_before;
        for token in &self.tokens[*n_before..] {
            end += self.tokenizer.token_bytes(*token).len();
            if end > n_bytes.min(range.end) {
                break;
            }
            n_tokens += 1;
        }
        n_tokens
    }
}

#[cfg(test)]
mod tests {
    use moeflux::provider::text::byte_tokenizer_json;
    use serde_json::json;

    use super::*;
    use crate::conversation::ToolResult;
    use crate::format::tests::{TEMPLATES, format_named, options};
    use crate::replay::Sampled;

    /// A tokenizer of bytes and of the markers of a format.
    fn tokenizer() -> Tokenizer {
        let name =
            format!("moeflux-replay-{}-{:?}", std::process::id(), std::thread::current().id());
        let folder = std::env::temp_dir().join(name.replace(['(', ')'], "-"));
        std::fs::create_dir_all(&folder).unwrap();
        let markers = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"];
        let n_tokens = 256 + markers.len();
        let json = byte_tokenizer_json(n_tokens, &markers).to_string();
        std::fs::write(folder.join("tokenizer.json"), json).unwrap();
        let tokenizer = Tokenizer::open(&folder, n_tokens).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        tokenizer
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

    /// A conversation over several turns, of which the answers are kept.
    struct Talk {
        format: ChatFormat,
        tokenizer: Tokenizer,
        replays: Replays,
        conversation: Conversation,
        fed: Vec<TokenId>,
    }

    impl Talk {
        fn new(name: &str) -> Self {
            let turns = vec![Turn::User("Look.".into())];
            let conversation = Conversation { turns, tools: tools(), ..Conversation::default() };
            let (format, replays) = (format_named(name), Replays::new(1 << 20));
            Self { format, tokenizer: tokenizer(), replays, conversation, fed: Vec::new() }
        }

        fn prepare(&self) -> Prepared {
            let (conversation, replays) = (&self.conversation, Some(&self.replays));
            self.format.prepare(conversation, &options(), &self.tokenizer, replays).unwrap()
        }

        /// An answer with blank space that no template writes.
        fn answer(&mut self, prepared: Prepared, answer: &Assistant) {
            let thoughts = match &answer.thoughts {
                Some(thoughts) if prepared.start == AnswerStart::Thought => {
                    format!("{thoughts}\n\n</think>")
                }
                Some(thoughts) => format!("<think>{thoughts}</think>"),
                None => String::new(),
            };
            let written = self.format.call_format().and_then(|it| it.written(&answer.calls, 0));
            let text = format!("{thoughts}{} \n{}", answer.text, written.unwrap_or_default());
            let tokens = self.tokenizer.encode(&text).unwrap();
            self.fed = [&prepared.tokens[..], &tokens].concat();
            let sampled = Sampled { answer: answer.clone(), tokens, n_text_bytes: text.len() };
            self.replays.keep(prepared.key.unwrap(), sampled);
        }

        /// The client tells this turn, and what came behind it.
        fn tell(&mut self, turn: Assistant, behind: Turn) -> Prepared {
            self.conversation.turns.extend([Turn::Assistant(turn), behind]);
            self.prepare()
        }
    }

    fn assistant(thoughts: Option<&str>, text: &str, calls: Vec<Call>) -> Assistant {
        Assistant { thoughts: thoughts.map(str::to_owned), text: text.into(), calls }
    }

    /// A call, its result, an answer and a question; how many turns are replayed then and then.
    fn replayed(name: &str, (thoughts, text): (Option<&str>, &str)) -> [usize; 2] {
        let mut talk = Talk::new(name);
        let prepared = talk.prepare();
        assert_eq!(prepared.n_replayed(), 0);
        let first = call("c0", r#"{"b": "x", "a": 1.0}"#);
        talk.answer(prepared, &assistant(thoughts, text, vec![first]));
        // Keys have another order, numbers another spelling, and thoughts are left out.
        let told = call("c0", r#"{"a": 1, "b": "x"}"#);
        let second = talk.tell(assistant(None, text, vec![told]), result("c0"));
        if second.n_replayed() > 0 {
            assert!(second.tokens.starts_with(&talk.fed), "{name}");
            let rest = talk.tokenizer.decode(&second.tokens[talk.fed.len()..]);
            assert!(rest.contains('R') && !rest.contains("tool_call>"), "{name}: {rest}");
            let last = *second.parts_at.last().unwrap();
            let is_behind = last > talk.fed.len() && last <= second.tokens.len();
            assert!(is_behind || thoughts.is_some(), "{name}: {last}");
        }
        let n_then = second.n_replayed();
        talk.answer(second, &assistant(None, "It is R.", Vec::new()));
        let third = talk.tell(assistant(None, "It is R.", Vec::new()), Turn::User("So?".into()));
        assert_eq!(third.tokens.starts_with(&talk.fed), third.n_replayed() == n_then + 1, "{name}");
        [n_then, third.n_replayed()]
    }

    #[test]
    fn answers_come_back_as_they_were_sampled() {
        for name in ["qwen3", "kimi_k2", "glm4_moe"] {
            assert_eq!(replayed(name, (None, "I look.")), [1, 2], "{name}");
            assert_eq!(replayed(name, (None, "")), [1, 2], "{name}");
        }
        // Beside a text this one leaves out arguments: what it writes does not say the same.
        assert_eq!(replayed("deepseek_v3", (None, "")), [1, 2]);
        assert_eq!(replayed("deepseek_v3", (None, "I look.")), [0, 1]);
        // These show thoughts up to the next question, and none of earlier ones.
        for name in ["qwen3", "glm4_moe"] {
            assert_eq!(replayed(name, (Some("Which?"), "I look.")), [1, 0], "{name}");
        }
        // This one opens a thought that its history does not show.
        assert_eq!(replayed("qwen3_5", (Some("Which?"), "I look.")), [0, 0]);
    }

    #[test]
    fn what_differs_is_not_replayed() {
        let first = assistant(None, "I look.", vec![call("c0", r#"{"a": 1}"#)]);
        let check = |change: &dyn Fn(&mut Talk, &mut Assistant)| {
            let mut talk = Talk::new("qwen3");
            let prepared = talk.prepare();
            talk.answer(prepared, &first);
            let mut turn = first.clone();
            change(&mut talk, &mut turn);
            let prepared = talk.tell(turn, result("c0"));
            let plain = talk.format.prompt(&talk.conversation, &options()).unwrap();
            let plain = plain.tokens(&talk.tokenizer).unwrap();
            assert_eq!(prepared.tokens == plain, prepared.n_replayed() == 0);
            prepared.n_replayed()
        };
        assert_eq!(check(&|_, _| {}), 1);
        assert_eq!(check(&|_, turn| turn.text = "I looked.".into()), 0);
        assert_eq!(check(&|_, turn| turn.calls[0] = call("c0", r#"{"a": 2}"#)), 0);
        assert_eq!(check(&|_, turn| turn.calls[0] = call("c1", r#"{"a": 1}"#)), 0);
        assert_eq!(check(&|_, turn| turn.thoughts = Some("Hm.".into())), 0);
        assert_eq!(check(&|talk, _| talk.conversation.turns[0] = Turn::User("Lock.".into())), 0);
        assert_eq!(check(&|talk, _| talk.conversation.turns[0] = Turn::User("Look!!".into())), 0);
        assert_eq!(check(&|talk, _| talk.replays = Replays::new(1 << 20)), 0);
    }

    #[test]
    fn without_replays_the_tokens_are_those_of_the_text() {
        for (name, _) in TEMPLATES {
            let mut talk = Talk::new(name);
            talk.conversation.turns.push(Turn::Assistant(assistant(None, "A", Vec::new())));
            talk.conversation.turns.push(Turn::User("B".into()));
            let prepared = talk.prepare();
            let plain = talk.format.prompt(&talk.conversation, &options()).unwrap();
            assert_eq!(prepared.tokens, plain.tokens(&talk.tokenizer).unwrap());
            assert_eq!((prepared.start, prepared.n_replayed()), (plain.start, 0));
            let (conversation, options) = (&talk.conversation, &options());
            let off = talk.format.prepare(conversation, options, &talk.tokenizer, None).unwrap();
            assert_eq!((off.tokens, off.parts_at), (prepared.tokens, prepared.parts_at));
            assert_eq!(off.key, None);
        }
    }
}
