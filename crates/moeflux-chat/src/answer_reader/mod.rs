//! Separates an answer's thoughts from its text and its calls, while the text arrives.
//!
//! A thought stands between two tags such as `<think>` and `</think>` at the start of an answer;
//! the template may already have written the first tag. Whitespace around a thought belongs to the
//! tags. A thought contains no calls. Answers that consist of messages have their own reader
//! (`channels`).
//! **Invariant:** the result does not depend on how the text is split into chunks; no part of a
//! marker is emitted; markers of thoughts that are not at the start are text. Uses tokens only as
//! names of markers.

mod repeats;
mod channels;

use moeflux::{TokenId, Tokenizer};

use crate::answer_reader::channels::header::MessageKind;
use crate::answer_reader::channels::reader::ChannelReader;
use crate::answer_reader::repeats::RepeatFilter;
use crate::calls::format::CallFormat;
use crate::calls::reader::CallReader;
use crate::calls::scan::{self, StreamState};
use crate::conversation::Tool;
use crate::piece::{AnswerPiece, AnswerStage};
use crate::thoughts::{Opening, ThoughtFormat};

/// The state in which an answer begins, as determined by the end of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerStart {
    /// At the start, or after the role of its first message; a thought may come first.
    Open,
    /// Inside a thought.
    Thought,
    /// In the text, or the model has no thoughts.
    Text,
}

/// An upper bound on the markers of any format, including those of thoughts.
const MARKERS_MAX: usize = 16;

/// The tokens of markers that the tokenizer treats as special and does not show.
///
/// A [`moeflux::Generation`] returns no text for these, so the caller of an [`AnswerReader`] looks
/// it up here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HiddenMarkers {
    markers: [Option<(TokenId, &'static str)>; MARKERS_MAX],
}

impl HiddenMarkers {
    /// Collects the markers of thoughts of a model that writes them in this format.
    #[must_use]
    pub fn of(tokenizer: &Tokenizer, thoughts: &ThoughtFormat) -> Self {
        Self::default().with(thoughts.markers(), tokenizer)
    }

    /// Adds the markers of calls, for answers that may contain some.
    #[must_use]
    pub fn with_calls(self, tokenizer: &Tokenizer, format: &CallFormat) -> Self {
        self.with(format.markers(), tokenizer)
    }

    fn with(
        mut self,
        markers: impl IntoIterator<Item = &'static str>,
        tokenizer: &Tokenizer,
    ) -> Self {
        for marker in markers {
            let token = tokenizer.id_of(marker).filter(|token| tokenizer.is_special(*token));
            let Some(token) = token.filter(|token| self.text(*token).is_none()) else { continue };
            let free = self.markers.iter_mut().find(|it| it.is_none());
            *free.expect("no format has more markers") = Some((token, marker));
        }
        self
    }

    /// Returns the text of a token if it is one of these markers.
    #[must_use]
    pub fn text(self, token: TokenId) -> Option<&'static str> {
        self.markers.iter().flatten().find(|(it, _)| *it == token).map(|(_, text)| *text)
    }
}

/// Splits the text of an answer into pieces.
#[derive(Clone, Debug)]
pub struct AnswerReader {
    reader: LayoutReader,
    repeats: RepeatFilter,
}

/// The reader for the layout of the answer.
#[derive(Clone, Debug)]
enum LayoutReader {
    ThoughtFirst(Box<ThoughtReader>),
    Messages(ChannelReader),
}

/// Reads a thought, then text.
#[derive(Clone, Debug)]
struct ThoughtReader {
    thoughts: &'static ThoughtFormat,
    state: ThoughtState,
    /// Text that may still become a marker, or whitespace that may belong to one.
    buffer: String,
    /// The reader of everything after the thought, if tools are offered.
    calls: Option<CallReader>,
}

/// The position of a [`ThoughtReader`] in its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThoughtState {
    MayOpen,
    BeforeThought,
    InThought,
    AfterThought,
    InText,
}

impl AnswerReader {
    /// Creates a reader for an answer that begins in this state, of a model with this thought
    /// format.
    #[must_use]
    pub fn new(start: AnswerStart, thoughts: &'static ThoughtFormat) -> Self {
        let reader = if thoughts.next().is_some() {
            let within = match start {
                AnswerStart::Open => None,
                AnswerStart::Thought => Some(MessageKind::Thought),
                AnswerStart::Text => Some(MessageKind::Text),
            };
            LayoutReader::Messages(ChannelReader::new(within))
        } else {
            let state = match start {
                AnswerStart::Open => ThoughtState::MayOpen,
                AnswerStart::Thought => ThoughtState::BeforeThought,
                AnswerStart::Text => ThoughtState::InText,
            };
            let (buffer, calls) = (String::new(), None);
            LayoutReader::ThoughtFirst(Box::new(ThoughtReader { thoughts, state, buffer, calls }))
        };
        Self { reader, repeats: RepeatFilter::default() }
    }

    /// Also reads calls of these tools in this format.
    #[must_use]
    pub fn with_calls(self, format: &'static CallFormat, tools: &[Tool]) -> Self {
        let reader = match self.reader {
            LayoutReader::ThoughtFirst(mut reader) => {
                let calls = || CallReader::new(format, tools).with_whole_json();
                reader.calls = (!tools.is_empty()).then(calls);
                LayoutReader::ThoughtFirst(reader)
            }
            LayoutReader::Messages(reader) => LayoutReader::Messages(reader.with_calls(tools)),
        };
        Self { reader, ..self }
    }

    /// Expects text that is JSON by the rules, so that JSON without markers is not a call.
    #[must_use]
    pub fn with_json_text(self) -> Self {
        let reader = match self.reader {
            LayoutReader::ThoughtFirst(mut reader) => {
                reader.calls = reader.calls.map(CallReader::without_whole_json);
                LayoutReader::ThoughtFirst(reader)
            }
            messages @ LayoutReader::Messages(_) => messages,
        };
        Self { reader, ..self }
    }

    /// Limits the answer to `n_calls_max` calls; anything that looks like a further call is text. A
    /// grammar alone cannot enforce this, because calls are also recognised when their opening
    /// marker is missing.
    #[must_use]
    pub fn with_calls_max(self, n_calls_max: usize) -> Self {
        let reader = match self.reader {
            LayoutReader::ThoughtFirst(mut reader) => {
                reader.calls = reader.calls.map(|calls| calls.with_calls_max(n_calls_max));
                LayoutReader::ThoughtFirst(reader)
            }
            LayoutReader::Messages(reader) => {
                LayoutReader::Messages(reader.with_calls_max(n_calls_max))
            }
        };
        Self { reader, ..self }
    }

    /// Returns the stage that the answer has reached.
    #[must_use]
    pub fn stage(&self) -> AnswerStage {
        match &self.reader {
            LayoutReader::ThoughtFirst(reader) => reader.stage(),
            LayoutReader::Messages(reader) => reader.stage(),
        }
    }

    /// Takes text and returns the pieces that became certain, in order.
    pub fn push(&mut self, text: &str) -> Vec<AnswerPiece> {
        let mut pieces = Vec::new();
        match &mut self.reader {
            LayoutReader::ThoughtFirst(reader) => reader.push(text, &mut pieces),
            LayoutReader::Messages(reader) => reader.push(text, &mut pieces),
        }
        self.repeats.filter(pieces)
    }

    /// Returns whether a call was repeated with the same arguments. The repetition and everything
    /// after it are dropped, so the answer may as well end here.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.repeats.is_over()
    }

    /// Returns the remaining pieces after the model ended its answer. A call that only lacks its
    /// end is complete.
    pub fn finish(&mut self) -> Vec<AnswerPiece> {
        self.end(StreamState::End)
    }

    /// Returns the remaining pieces after a limit or a stop sequence ended the answer. An
    /// incomplete call stays incomplete, because the continuation of its last value is unknown.
    pub fn finish_cut(&mut self) -> Vec<AnswerPiece> {
        self.end(StreamState::Cut)
    }

    fn end(&mut self, stream: StreamState) -> Vec<AnswerPiece> {
        let pieces = match &mut self.reader {
            LayoutReader::ThoughtFirst(reader) => reader.end(stream),
            LayoutReader::Messages(reader) => {
                let mut pieces = Vec::new();
                reader.finish(stream, &mut pieces);
                pieces
            }
        };
        self.repeats.filter(pieces)
    }
}

impl ThoughtReader {
    fn stage(&self) -> AnswerStage {
        match self.state {
            ThoughtState::MayOpen => AnswerStage::Start,
            ThoughtState::BeforeThought | ThoughtState::InThought => AnswerStage::Thought,
            ThoughtState::AfterThought => AnswerStage::AfterThought,
            ThoughtState::InText if self.calls.as_ref().is_some_and(CallReader::is_in_call) => {
                AnswerStage::Call
            }
            ThoughtState::InText => AnswerStage::Text,
        }
    }

    fn push(&mut self, text: &str, pieces: &mut Vec<AnswerPiece>) {
        self.buffer.push_str(text);
        while let Some(next) = self.step(pieces) {
            self.state = next;
        }
    }

    fn end(&mut self, stream: StreamState) -> Vec<AnswerPiece> {
        let mut pieces = Vec::new();
        let buffer = std::mem::take(&mut self.buffer);
        match (self.state, &mut self.calls) {
            (ThoughtState::AfterThought, _) => {}
            (ThoughtState::MayOpen | ThoughtState::InText, Some(calls)) => {
                calls.push(&buffer, &mut pieces);
                calls.finish(stream, &mut pieces);
            }
            (ThoughtState::MayOpen | ThoughtState::InText, None) => {
                pieces.extend(some(AnswerPiece::Text, &buffer));
            }
            (ThoughtState::BeforeThought, _) => {
                pieces.extend(some(AnswerPiece::Thought, buffer.trim()));
            }
            (ThoughtState::InThought, _) => {
                pieces.extend(some(AnswerPiece::Thought, buffer.trim_end()));
            }
        }
        pieces
    }

    /// Consumes what the current state allows from the buffered text. Returns the next state if
    /// there may be more to consume.
    fn step(&mut self, pieces: &mut Vec<AnswerPiece>) -> Option<ThoughtState> {
        match self.state {
            ThoughtState::MayOpen => self.open(),
            ThoughtState::BeforeThought => {
                self.drop_blank();
                (!self.buffer.is_empty()).then_some(ThoughtState::InThought)
            }
            ThoughtState::InThought => self.think(pieces),
            ThoughtState::AfterThought => {
                self.drop_blank();
                (!self.buffer.is_empty()).then_some(ThoughtState::InText)
            }
            ThoughtState::InText => {
                let text = std::mem::take(&mut self.buffer);
                match &mut self.calls {
                    Some(calls) => calls.push(&text, pieces),
                    None => pieces.extend(some(AnswerPiece::Text, &text)),
                }
                None
            }
        }
    }

    fn open(&mut self) -> Option<ThoughtState> {
        let (n_bytes, state) = match self.thoughts.opening(&self.buffer) {
            Opening::Unknown => return None,
            Opening::Opened(n_bytes) => (n_bytes, ThoughtState::BeforeThought),
            Opening::Closed(n_bytes) => (n_bytes, ThoughtState::AfterThought),
            Opening::None => (0, ThoughtState::InText),
        };
        self.buffer.drain(..n_bytes);
        Some(state)
    }

    fn think(&mut self, pieces: &mut Vec<AnswerPiece>) -> Option<ThoughtState> {
        let end = self.buffer.find(self.thoughts.close);
        let n_unfinished = || scan::n_unfinished(&self.buffer, self.thoughts.close);
        let n_certain = end.unwrap_or_else(|| self.buffer.len() - n_unfinished());
        let n_settled = scan::n_settled(&self.buffer[..n_certain]);
        pieces.extend(some(AnswerPiece::Thought, &self.buffer[..n_settled]));
        let n_read = end.map_or(n_settled, |end| end + self.thoughts.close.len());
        self.buffer.drain(..n_read);
        end.map(|_| ThoughtState::AfterThought)
    }

    fn drop_blank(&mut self) {
        let n_blank = self.buffer.len() - self.buffer.trim_start().len();
        self.buffer.drain(..n_blank);
    }
}

fn some(kind: fn(String) -> AnswerPiece, text: &str) -> Option<AnswerPiece> {
    (!text.is_empty()).then(|| kind(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::format::{HERMES, KIMI_K2, QWEN_XML};
    use crate::calls::scan::BLANK_BYTES_MAX;
    use crate::thoughts::THINK;

    fn joined(start: AnswerStart, pieces: &[&str]) -> (String, String) {
        let with_calls = AnswerReader::new(start, &THINK).with_calls(&HERMES, &[tool()]);
        let found = read(AnswerReader::new(start, &THINK), pieces);
        assert_eq!(read(with_calls, pieces), found, "tools change what is no call");
        found
    }

    fn tool() -> Tool {
        Tool::function("f".into(), None, None)
    }

    fn read(mut reader: AnswerReader, pieces: &[&str]) -> (String, String) {
        let mut found: Vec<AnswerPiece> = pieces.iter().flat_map(|it| reader.push(it)).collect();
        found.extend(reader.finish());
        let (mut thought, mut text) = (String::new(), String::new());
        for piece in found {
            match piece {
                AnswerPiece::Thought(it) => {
                    assert!(text.is_empty(), "a thought after text");
                    thought.push_str(&it);
                }
                AnswerPiece::Text(it) => text.push_str(&it),
                other => panic!("no tool is called: {other:?}"),
            }
        }
        (thought, text)
    }

    /// Checks the text whole, cut at every two places, and character by character.
    #[track_caller]
    fn check(start: AnswerStart, answer: &str, thought: &str, text: &str) {
        let expected = (thought.to_owned(), text.to_owned());
        let cuts: Vec<usize> =
            (0..=answer.len()).filter(|cut| answer.is_char_boundary(*cut)).collect();
        for &first in &cuts {
            for &second in cuts.iter().filter(|&&it| it >= first) {
                let pieces = [&answer[..first], &answer[first..second], &answer[second..]];
                assert_eq!(joined(start, &pieces), expected, "cut at {first} and {second}");
            }
        }
        let characters: Vec<&str> = cuts.windows(2).map(|it| &answer[it[0]..it[1]]).collect();
        assert_eq!(joined(start, &characters), expected, "by characters");
    }

    #[test]
    fn a_thought_at_the_start_is_not_text() {
        use AnswerStart::Open;
        check(Open, "<think>\nI add.\n</think>\n\n  Four.\n", "I add.", "Four.\n");
        check(Open, " \n<think>a</think>b", "a", "b");
        check(Open, "\u{a0}<think>a</think>b", "a", "b");
        check(Open, "<think>\n\n</think>\n\nFour.", "", "Four.");
        check(Open, "<think></think><tool_call>", "", "<tool_call>");
        check(Open, "</think>\n\nFour.", "", "Four.");
        check(Open, "<think>a < b </thin </think >c</think>d", "a < b </thin </think >c", "d");
        check(Open, "<think>\u{e9}\u{8a9e} </think>\u{1f600}", "\u{e9}\u{8a9e}", "\u{1f600}");
        check(Open, "<think>a\n\nb <think> c</think>d</think>", "a\n\nb <think> c", "d</think>");
    }

    #[test]
    fn everything_else_is_text() {
        use AnswerStart::{Open, Text};
        for answer in [
            "",
            "  Four.",
            " \n",
            "<",
            "<thin",
            "</thin",
            "<thinking>a</thinking>",
            "a <think>b</think> c",
            "a</think>b",
            "\u{e9}<think></think>",
            "\u{a0}<thin",
        ] {
            check(Open, answer, "", answer);
        }
        check(Text, "<think>a</think>b", "", "<think>a</think>b");
        check(Text, "  a ", "", "  a ");
        let blank = " ".repeat(BLANK_BYTES_MAX);
        check(Open, &format!("{blank}<think>a</think>b"), "a", "b");
        let after = format!("{blank} <think>a</think>b");
        check(Open, &after, "", &after);
    }

    #[test]
    fn a_thought_that_does_not_end_stays_one() {
        use AnswerStart::{Open, Thought};
        check(Open, "<think>", "", "");
        check(Open, "<think>\nI add.\n", "I add.", "");
        check(Open, "<think>I add </thin", "I add </thin", "");
        check(Thought, " I add.", "I add.", "");
        check(Thought, "\nI add.\n</think>\n\nFour.", "I add.", "Four.");
        check(Thought, "\n</think>\n\nFour.", "", "Four.");
        check(Thought, "<think>a</think>b", "<think>a", "b");
        check(Thought, " </", "</", "");
        // Whitespace beyond the limit of a marker is emitted as it arrives.
        let [blank, lines] = [" ".repeat(BLANK_BYTES_MAX), "\n".repeat(BLANK_BYTES_MAX + 9)];
        check(Thought, &format!("a{blank}</think>b"), "a", "b");
        check(Thought, &format!("a{lines}</think>b"), &format!("a{}", "\n".repeat(9)), "b");
        let wide = "\u{3000}".repeat(30);
        check(Thought, &format!("a{wide}"), &format!("a{}", "\u{3000}".repeat(9)), "");
        check(Thought, "", "", "");
    }

    #[test]
    fn the_stage_follows_the_text() {
        let mut reader = AnswerReader::new(AnswerStart::Open, &THINK);
        let mut stage_after = |text: &str| {
            reader.push(text);
            reader.stage()
        };
        assert_eq!(stage_after(" <thi"), AnswerStage::Start);
        assert_eq!(stage_after("nk>"), AnswerStage::Thought);
        assert_eq!(stage_after("a</thi"), AnswerStage::Thought);
        assert_eq!(stage_after("nk>"), AnswerStage::AfterThought);
        assert_eq!(stage_after("\n\n"), AnswerStage::AfterThought);
        assert_eq!(stage_after("b"), AnswerStage::Text);
        assert_eq!(AnswerReader::new(AnswerStart::Thought, &THINK).stage(), AnswerStage::Thought);
        assert_eq!(AnswerReader::new(AnswerStart::Text, &THINK).stage(), AnswerStage::Text);
    }

    #[test]
    fn a_call_follows_a_thought() {
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
        let answer = format!("<think>\nI call {call}.\n</think>\n\n{call}\n");
        let reader = || AnswerReader::new(AnswerStart::Open, &THINK).with_calls(&HERMES, &[tool()]);
        let expected = [
            AnswerPiece::Thought(format!("I call {call}.")),
            AnswerPiece::Call { name: "f".into(), id: None },
            AnswerPiece::Arguments("{}".into()),
            AnswerPiece::CallEnd,
        ];
        let mut whole = reader();
        assert_eq!(whole.push(&answer), expected);
        assert_eq!(whole.finish(), []);
        let mut stages = reader();
        let mut stage_after = |text: &str| {
            stages.push(text);
            stages.stage()
        };
        assert_eq!(
            stage_after(&answer[..answer.len() - call.len() - 1]),
            AnswerStage::AfterThought
        );
        assert_eq!(stage_after("<tool_call>\n{\"name\": \"f\", "), AnswerStage::Text);
        assert_eq!(stage_after("\"arguments\": {"), AnswerStage::Call);
        assert_eq!(stage_after("}}\n</tool_call>\n"), AnswerStage::Call);
        assert_eq!(stage_after("And"), AnswerStage::Text);
    }

    #[test]
    fn nothing_is_a_call_where_no_tool_is_offered() {
        let answer = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n";
        let mut reader = AnswerReader::new(AnswerStart::Text, &THINK).with_calls(&HERMES, &[]);
        assert_eq!(reader.push(answer), [AnswerPiece::Text(answer.into())]);
        assert_eq!(reader.finish(), []);
    }

    #[test]
    fn calls_beyond_the_most_are_text() {
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
        let line = "{\"name\": \"f\", \"arguments\": {}}";
        let read = |answer: &str, n_calls_max: usize| {
            let reader =
                AnswerReader::new(AnswerStart::Text, &THINK).with_calls(&HERMES, &[tool()]);
            let mut reader = reader.with_calls_max(n_calls_max);
            let mut pieces = reader.push(answer);
            pieces.extend(reader.finish());
            let n_calls = pieces.iter().filter(|it| **it == AnswerPiece::CallEnd).count();
            let text =
                |piece| if let AnswerPiece::Text(text) = piece { text } else { String::new() };
            (n_calls, pieces.into_iter().map(text).collect::<String>())
        };
        let (other, argued) = (line.replace("{}", "{\"a\": 1}"), call.replace("{}", "{\"a\": 1}"));
        assert_eq!(read(&format!("{call}\n{argued}"), 2), (2, String::new()));
        assert_eq!(read(&format!("{call}\n{call}\nx"), 2), (1, String::new()));
        assert_eq!(read(&format!("{call}\n{call}\nx"), 1), (1, format!("\n{call}\nx")));
        assert_eq!(read(&format!("{call}\n{line}"), 1), (1, format!("\n{line}")));
        assert_eq!(read(&format!("a {call}\n"), 0), (0, format!("a {call}\n")));
        let several = format!("<tool_call>[{line}, {other}]</tool_call>");
        assert_eq!(read(&several, 2), (2, String::new()));
        assert_eq!(read(&several, 1), (0, several.clone()));
        let missing = "<|tool_call_begin|>functions.f:1<|tool_call_argument_begin|>{}";
        let section = format!("<|tool_calls_section_begin|>{missing}<|tool_calls_section_end|>");
        let reader = AnswerReader::new(AnswerStart::Text, &THINK).with_calls(&KIMI_K2, &[tool()]);
        let mut reader = reader.with_calls_max(1);
        assert_eq!(reader.push(&section).len(), 3);
        assert_eq!(reader.push(missing), [AnswerPiece::Text(missing.to_owned())]);
    }

    #[test]
    fn long_values_come_before_their_end() {
        let offered = [Tool::custom("f".into(), None)];
        let begins = [
            (&HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"input\": \""),
            (&QWEN_XML, "<tool_call><function=f><parameter=input>"),
        ];
        for (format, begin) in begins {
            let mut reader =
                AnswerReader::new(AnswerStart::Text, &THINK).with_calls(format, &offered);
            let mut pieces = reader.push(begin);
            pieces.extend(reader.push("a\u{e9}"));
            let mut written = String::new();
            for piece in &pieces[1..] {
                let AnswerPiece::Arguments(text) = piece else { panic!("{piece:?}") };
                written.push_str(text);
            }
            assert_eq!(pieces[0], AnswerPiece::Call { name: "f".into(), id: None });
            assert_eq!(written, "{\"input\": \"a\u{e9}", "{}", format.title);
        }
    }
}
