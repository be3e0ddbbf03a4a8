//! Separates thoughts, texts and calls of an answer in harmony, while it arrives.
//!
//! A message in the channel `analysis` is a thought, one to an offered tool is a call, and any
//! other is text. Consecutive thoughts or texts are separated by an empty line. A marker that does
//! not begin a header is dropped and the message continues; only the arguments of a call keep it.
//! **Invariant:** the result does not depend on how the text is split into chunks; no text is
//! emitted before its channel is known.

use std::sync::Arc;

use crate::answer_reader::channels::header::{
    self, CALL, CHANNEL, CONSTRAIN, ChannelHeader, END, HeaderPosition, MessageKind, RETURN, START,
};
use crate::calls::format::HARMONY;
use crate::calls::reader::CallReader;
use crate::calls::scan::{ScanError, StreamState};
use crate::conversation::Tool;
use crate::piece::{AnswerPiece, AnswerStage};
use crate::thoughts::HARMONY_MARKERS;

/// The separator of two messages of the same kind.
const BETWEEN: &str = "\n\n";

/// Markers that end a message or begin a header.
const BREAKS: [&str; 5] = [END, RETURN, CALL, START, CHANNEL];

/// Splits the messages of an answer into pieces.
#[derive(Clone, Debug)]
pub(crate) struct ChannelReader {
    tools: Arc<[Tool]>,
    /// The number of calls that may still begin.
    n_calls_left: usize,
    state: ChannelState,
    /// Text that is not settled yet.
    buffer: String,
    /// Whether any text, and any thought, was emitted.
    has_emitted: EmittedKinds,
    /// Whether nothing of this message was emitted yet.
    is_new: bool,
}

/// Whether pieces of these kinds were emitted.
#[derive(Clone, Copy, Debug, Default)]
struct EmittedKinds {
    text: bool,
    thought: bool,
}

/// The position of a [`ChannelReader`] in its answer.
#[derive(Clone, Debug)]
enum ChannelState {
    /// Before the first header.
    Start,
    In(ChannelMessage),
    /// The buffered text begins with a marker that ends this message if a header follows.
    Break(ChannelMessage),
}

/// A message of the answer.
#[derive(Clone, Debug)]
enum ChannelMessage {
    Plain(MessageKind),
    Call(Box<CallMessage>),
}

/// A message to a tool.
#[derive(Clone, Debug)]
struct CallMessage {
    reader: CallReader,
    /// The kind of the message if it turns out not to be a call.
    fallback_kind: MessageKind,
    /// Its whole text, until the call begins.
    body: String,
    has_begun: bool,
    /// Whether the call has ended, complete or cut.
    is_over: bool,
}

impl ChannelReader {
    /// Creates a reader of an answer that begins with a header, or within a message.
    pub(crate) fn new(within: Option<MessageKind>) -> Self {
        let state = within
            .map_or(ChannelState::Start, |kind| ChannelState::In(ChannelMessage::Plain(kind)));
        let (buffer, has_emitted) = (String::new(), EmittedKinds::default());
        Self {
            tools: Arc::new([]),
            n_calls_left: usize::MAX,
            state,
            buffer,
            has_emitted,
            is_new: true,
        }
    }

    /// Also reads calls of these tools.
    pub(crate) fn with_calls(self, tools: &[Tool]) -> Self {
        Self { tools: tools.into(), ..self }
    }

    /// Limits the answer to `n_calls_max` calls.
    pub(crate) fn with_calls_max(self, n_calls_max: usize) -> Self {
        Self { n_calls_left: n_calls_max, ..self }
    }

    pub(crate) fn stage(&self) -> AnswerStage {
        match &self.state {
            ChannelState::Start if !self.buffer.contains("|>") => AnswerStage::Start,
            ChannelState::Start | ChannelState::Break(_) => AnswerStage::Header,
            ChannelState::In(ChannelMessage::Call(_)) => AnswerStage::Call,
            ChannelState::In(ChannelMessage::Plain(MessageKind::Thought)) => AnswerStage::Thought,
            ChannelState::In(ChannelMessage::Plain(MessageKind::Text)) => AnswerStage::Text,
            ChannelState::In(ChannelMessage::Plain(MessageKind::Foreign)) => AnswerStage::Header,
        }
    }

    /// Takes text and appends the pieces that became certain.
    pub(crate) fn push(&mut self, text: &str, pieces: &mut Vec<AnswerPiece>) {
        self.buffer.push_str(text);
        while self.step(pieces) {}
    }

    /// Ends the answer and appends the remaining pieces.
    pub(crate) fn finish(&mut self, stream: StreamState, pieces: &mut Vec<AnswerPiece>) {
        let buffer = std::mem::take(&mut self.buffer);
        match std::mem::replace(&mut self.state, ChannelState::Start) {
            ChannelState::In(ChannelMessage::Plain(kind)) => self.emit(kind, &buffer, pieces),
            // Half a header has no content; without a marker it is not a header.
            ChannelState::Start if !buffer.contains("|>") => {
                self.emit(MessageKind::Text, &buffer, pieces);
            }
            ChannelState::In(ChannelMessage::Call(mut call)) => {
                if call.push(&buffer, pieces) {
                    self.end_call(*call, stream, pieces);
                } else {
                    self.emit(call.fallback_kind, &call.body, pieces);
                }
            }
            ChannelState::Break(ChannelMessage::Call(call)) => {
                let is_ended = [END, RETURN].iter().any(|it| buffer.starts_with(it));
                self.end_call(*call, if is_ended { StreamState::End } else { stream }, pieces);
            }
            ChannelState::Break(ChannelMessage::Plain(kind)) if stream == StreamState::End => {
                // The message mentions a marker. After the end of a message, the marker began
                // another one.
                let is_ended = [END, RETURN, CALL].iter().any(|it| buffer.starts_with(it));
                let text = buffer.replace(START, "").replace(CHANNEL, "").replace(CONSTRAIN, "");
                self.emit(kind, if is_ended { "" } else { &text }, pieces);
            }
            ChannelState::Start | ChannelState::Break(ChannelMessage::Plain(_)) => {}
        }
    }

    /// Settles the beginning of the buffered text. Returns whether there may be more to settle.
    fn step(&mut self, pieces: &mut Vec<AnswerPiece>) -> bool {
        match std::mem::replace(&mut self.state, ChannelState::Start) {
            ChannelState::Start => self.start(),
            ChannelState::In(ChannelMessage::Plain(kind)) => self.plain(kind, pieces),
            ChannelState::In(ChannelMessage::Call(call)) => self.call(call, pieces),
            ChannelState::Break(message) => self.at_break(message, pieces),
        }
    }

    fn start(&mut self) -> bool {
        match header::find(&self.buffer, HeaderPosition::Start) {
            Ok(header) => self.begin(&header, 0),
            Err(ScanError::Incomplete) => return false,
            Err(ScanError::Mismatch) => {
                let n_blank = self.buffer.len() - self.buffer.trim_start().len();
                if let Some((0, marker)) = first_of(&self.buffer[n_blank..], &HARMONY_MARKERS) {
                    self.buffer.drain(..n_blank + marker.len());
                }
                self.state = ChannelState::In(ChannelMessage::Plain(MessageKind::Text));
            }
        }
        true
    }

    fn plain(&mut self, kind: MessageKind, pieces: &mut Vec<AnswerPiece>) -> bool {
        let (n_settled, marker) = self.next_marker();
        let text: String = self.buffer.drain(..n_settled).collect();
        self.emit(kind, &text, pieces);
        let message = ChannelMessage::Plain(kind);
        match marker {
            None => {
                self.state = ChannelState::In(message);
                return false;
            }
            Some(marker) if BREAKS.contains(&marker) => self.state = ChannelState::Break(message),
            Some(marker) => {
                self.buffer.drain(..marker.len());
                self.state = ChannelState::In(message);
            }
        }
        true
    }

    /// Arguments may mention markers, so until they are complete, only the end of a message ends
    /// them.
    fn call(&mut self, mut call: Box<CallMessage>, pieces: &mut Vec<AnswerPiece>) -> bool {
        let (n_settled, marker) = self.next_marker();
        let text: String = self.buffer.drain(..n_settled).collect();
        if !self.push_call(&mut call, &text, pieces) {
            return true;
        }
        let Some(marker) = marker else {
            self.state = ChannelState::In(ChannelMessage::Call(call));
            return false;
        };
        let breaks: &[&str] = if call.is_over { &BREAKS } else { &[END, RETURN] };
        if breaks.contains(&marker) {
            self.state = ChannelState::Break(ChannelMessage::Call(call));
        } else {
            self.pass_marker(call, marker.len(), pieces);
        }
        true
    }

    /// Passes a marker at the start of the buffered text that does not act as one here.
    fn pass_marker(
        &mut self,
        mut call: Box<CallMessage>,
        n_bytes: usize,
        pieces: &mut Vec<AnswerPiece>,
    ) {
        let marker: String = self.buffer.drain(..n_bytes).collect();
        if call.is_over || self.push_call(&mut call, &marker, pieces) {
            self.state = ChannelState::In(ChannelMessage::Call(call));
        }
    }

    /// Returns the number of bytes before the next marker, and that marker if it is complete.
    fn next_marker(&self) -> (usize, Option<&'static str>) {
        match first_of(&self.buffer, &HARMONY_MARKERS) {
            Some((at, marker)) => (at, Some(marker)),
            None => (self.buffer.len() - header::n_unfinished(&self.buffer), None),
        }
    }

    /// Takes text. Returns whether the message still may be a call; otherwise its text is read
    /// again.
    fn push_call(
        &mut self,
        call: &mut CallMessage,
        text: &str,
        pieces: &mut Vec<AnswerPiece>,
    ) -> bool {
        let is_call = call.push(text, pieces);
        if !is_call {
            self.n_calls_left += 1;
            self.buffer.insert_str(0, &call.body);
            self.state = ChannelState::In(ChannelMessage::Plain(call.fallback_kind));
        }
        is_call
    }

    fn at_break(&mut self, message: ChannelMessage, pieces: &mut Vec<AnswerPiece>) -> bool {
        let ends = [END, RETURN, CALL];
        let n_end = ends.iter().find(|it| self.buffer.starts_with(**it)).map_or(0, |it| it.len());
        let position = if n_end > 0 { HeaderPosition::After } else { HeaderPosition::Within };
        match header::find(&self.buffer[n_end..], position) {
            Ok(header) => {
                if let ChannelMessage::Call(call) = message {
                    self.end_call(*call, StreamState::End, pieces);
                }
                self.begin(&header, n_end);
            }
            Err(ScanError::Incomplete) => {
                self.state = ChannelState::Break(message);
                return false;
            }
            Err(ScanError::Mismatch) => {
                let marker = BREAKS.iter().find(|it| self.buffer.starts_with(**it));
                let n_bytes = marker.expect("what is held begins with a marker").len();
                match message {
                    ChannelMessage::Plain(kind) => {
                        self.buffer.drain(..n_bytes);
                        self.state = ChannelState::In(ChannelMessage::Plain(kind));
                    }
                    ChannelMessage::Call(call) => self.pass_marker(call, n_bytes, pieces),
                }
            }
        }
        true
    }

    fn begin(&mut self, header: &ChannelHeader, n_before: usize) {
        self.buffer.drain(..n_before + header.n_bytes);
        self.is_new = true;
        let tool = header.recipient.as_deref().and_then(|it| self.tool(it));
        let message = match tool.filter(|_| self.n_calls_left > 0) {
            Some(tool) => ChannelMessage::Call(Box::new(CallMessage::new(tool, header.kind))),
            None => ChannelMessage::Plain(header.kind),
        };
        self.n_calls_left -= usize::from(matches!(message, ChannelMessage::Call(_)));
        self.state = ChannelState::In(message);
    }

    fn tool(&self, recipient: &str) -> Option<&Tool> {
        let bare = recipient.strip_prefix(HARMONY.before_name).unwrap_or(recipient);
        self.tools.iter().find(|it| !it.name.is_empty() && it.name == bare)
    }

    fn end_call(
        &mut self,
        mut call: CallMessage,
        stream: StreamState,
        pieces: &mut Vec<AnswerPiece>,
    ) {
        if !call.finish(stream, pieces) {
            self.n_calls_left += 1;
            self.emit(call.fallback_kind, &call.body, pieces);
        }
    }

    fn emit(&mut self, kind: MessageKind, text: &str, pieces: &mut Vec<AnswerPiece>) {
        let has_emitted = match kind {
            MessageKind::Thought => &mut self.has_emitted.thought,
            MessageKind::Text => &mut self.has_emitted.text,
            MessageKind::Foreign => return,
        };
        if text.is_empty() {
            return;
        }
        let is_apart = std::mem::replace(has_emitted, true) && std::mem::take(&mut self.is_new);
        self.is_new = false;
        let text = format!("{}{text}", if is_apart { BETWEEN } else { "" });
        match (pieces.last_mut(), kind) {
            (Some(AnswerPiece::Thought(last)), MessageKind::Thought)
            | (Some(AnswerPiece::Text(last)), MessageKind::Text) => {
                last.push_str(&text);
            }
            (_, MessageKind::Thought) => pieces.push(AnswerPiece::Thought(text)),
            _ => pieces.push(AnswerPiece::Text(text)),
        }
    }
}

impl CallMessage {
    fn new(tool: &Tool, fallback_kind: MessageKind) -> Self {
        let tools = std::slice::from_ref(tool);
        let mut reader = CallReader::new(&HARMONY, tools).with_calls_max(1);
        let head = [HARMONY.before_call, HARMONY.before_name, &tool.name, HARMONY.after_name];
        reader.push(&head.concat(), &mut Vec::new());
        Self { reader, fallback_kind, body: String::new(), has_begun: false, is_over: false }
    }

    /// Takes text. Returns whether the message still may be a call.
    fn push(&mut self, text: &str, pieces: &mut Vec<AnswerPiece>) -> bool {
        if !self.has_begun {
            self.body.push_str(text);
        }
        let mut new = Vec::new();
        self.reader.push(text, &mut new);
        self.take(new, pieces)
    }

    /// Ends the message or the answer. An empty message is a call without arguments.
    fn finish(&mut self, stream: StreamState, pieces: &mut Vec<AnswerPiece>) -> bool {
        let mut new = Vec::new();
        if !self.has_begun && stream == StreamState::End {
            self.reader.push(CALL, &mut new);
        }
        self.reader.finish(stream, &mut new);
        self.take(new, pieces)
    }

    fn take(&mut self, new: Vec<AnswerPiece>, pieces: &mut Vec<AnswerPiece>) -> bool {
        if !self.has_begun {
            match new.first() {
                None => return true,
                Some(AnswerPiece::Call { .. }) => self.has_begun = true,
                Some(_) => return false,
            }
        }
        self.is_over |=
            new.iter().any(|it| matches!(it, AnswerPiece::CallEnd | AnswerPiece::CallCut));
        pieces.extend(new);
        true
    }
}

/// Returns the offset of the first of these markers in a text, and the marker.
fn first_of(text: &str, markers: &[&'static str]) -> Option<(usize, &'static str)> {
    text.match_indices('<').find_map(|(at, _)| {
        let marker = markers.iter().find(|marker| text[at..].starts_with(**marker))?;
        Some((at, *marker))
    })
}
