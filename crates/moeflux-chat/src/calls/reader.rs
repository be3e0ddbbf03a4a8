//! Finds calls in the text of an answer, while it arrives.
//!
//! Whitespace before the first marker of a call, and between calls, belongs to the markers.
//! **Invariant:** the result does not depend on how the text is split into chunks; everything that
//! is not a call of an offered tool is emitted as text, byte for byte; every call that begins also
//! ends, complete or cut.

use std::sync::Arc;

use crate::calls::arguments::json::{JsonProgress, JsonReader};
use crate::calls::arguments::tagged::{ArgumentsContext, ArgumentsOutcome};
use crate::calls::arguments::{self, ArgumentsReader};
use crate::calls::envelope;
use crate::calls::format::{ArgumentsForm, CallFormat};
use crate::calls::head::{self, ArgumentsStart, CallBody, CallHead, CalledTool};
use crate::calls::scan::{self, Scan, ScanError, ScanResult, StreamState};
use crate::calls::whole::WholeReader;
use crate::conversation::Tool;
use crate::piece::AnswerPiece;

/// Maximum length of members after the arguments in the same object, which are held back; longer
/// ones are text.
const REST_BYTES_MAX: usize = 1024;

/// Splits the text of an answer into text and calls.
#[derive(Clone, Debug)]
pub(crate) struct CallReader {
    format: &'static CallFormat,
    tools: Arc<[Tool]>,
    /// The number of calls that may still begin.
    n_left: usize,
    state: CallReaderState,
    /// Text that is not settled yet.
    buffer: String,
    /// Whether the buffered text begins a line, apart from whitespace.
    is_line_start: bool,
    /// Whether only whitespace came since the last call.
    is_after_call: bool,
}

/// The position of a [`CallReader`] in its answer.
#[derive(Clone, Debug)]
enum CallReaderState {
    /// At the start of an answer that may begin with a call without a marker. If it does not, the
    /// next state is [`CallReaderState::Whole`] with this reader, or [`CallReaderState::Text`].
    Bare(Option<WholeReader>),
    /// At the start of an answer that may consist of a single call. The whole text is buffered.
    Whole(WholeReader),
    Text,
    Envelope(Envelope),
    Call(OpenCall),
    /// After the arguments, among closing markers.
    Tail(CallTail),
    /// After unreadable text, in a call that has not ended.
    Broken,
}

/// JSON that may turn out to be calls. The whole text is buffered.
#[derive(Clone, Debug)]
struct Envelope {
    is_marked: bool,
    /// The offset of the call in the buffered text, after whitespace.
    start: usize,
    /// The offset up to which the JSON is read.
    at: usize,
    json: JsonReader,
    value: String,
}

/// A call that has begun.
#[derive(Clone, Debug)]
struct OpenCall {
    format: &'static CallFormat,
    tool_idx: usize,
    arguments: ArgumentsReader,
}

/// The part of a call after its arguments.
#[derive(Clone, Debug)]
struct CallTail {
    /// The format of the call.
    format: &'static CallFormat,
    /// The rest of the object that contains the arguments; it is buffered.
    rest: Option<ObjectRest>,
    /// Whether the closing marker of the arguments may still come.
    may_close_arguments: bool,
}

/// The text after the arguments in the same object.
#[derive(Clone, Debug)]
struct ObjectRest {
    json: JsonReader,
    /// The offset up to which it is read.
    at: usize,
}

/// The kind of the rest of an object.
#[derive(Clone, Copy, Debug)]
enum RestKind {
    Unknown,
    /// Without content, up to this offset.
    Empty(usize),
    Text,
}

impl CallReader {
    /// Creates a reader for answers that write calls of these tools in this format.
    pub(crate) fn new(format: &'static CallFormat, tools: &[Tool]) -> Self {
        let is_bare = format.is_bare();
        let state = if is_bare { CallReaderState::Bare(None) } else { CallReaderState::Text };
        let buffer = String::new();
        let (tools, n_left) = (tools.into(), usize::MAX);
        Self { format, tools, n_left, state, buffer, is_line_start: true, is_after_call: false }
    }

    /// Also accepts an answer that is one JSON object without any marker.
    pub(crate) fn with_whole_json(self) -> Self {
        let whole = WholeReader::default();
        let state = match self.state {
            CallReaderState::Bare(_) => CallReaderState::Bare(Some(whole)),
            _ => CallReaderState::Whole(whole),
        };
        Self { state, ..self }
    }

    /// Undoes [`CallReader::with_whole_json`].
    pub(crate) fn without_whole_json(self) -> Self {
        let state = match self.state {
            CallReaderState::Bare(_) => CallReaderState::Bare(None),
            _ => CallReaderState::Text,
        };
        Self { state, ..self }
    }

    /// Limits the answer to `n_calls_max` calls; anything that looks like a further call is text.
    pub(crate) fn with_calls_max(self, n_calls_max: usize) -> Self {
        Self { n_left: n_calls_max, ..self }
    }

    /// Returns whether a call has begun whose end is not certain.
    pub(crate) fn is_in_call(&self) -> bool {
        !matches!(
            self.state,
            CallReaderState::Bare(_)
                | CallReaderState::Whole(_)
                | CallReaderState::Text
                | CallReaderState::Envelope(_)
        )
    }

    /// Takes text and appends the pieces that became certain.
    pub(crate) fn push(&mut self, text: &str, pieces: &mut Vec<AnswerPiece>) {
        self.buffer.push_str(text);
        while self.step(StreamState::More, pieces) {}
    }

    /// Ends the answer and appends the remaining pieces.
    pub(crate) fn finish(&mut self, stream: StreamState, pieces: &mut Vec<AnswerPiece>) {
        while self.step(stream, pieces) {}
        let buffer = std::mem::take(&mut self.buffer);
        match std::mem::replace(&mut self.state, CallReaderState::Text) {
            CallReaderState::Bare(_)
            | CallReaderState::Whole(_)
            | CallReaderState::Text
            | CallReaderState::Envelope(_) => {
                if !(self.is_after_call && buffer.trim().is_empty()) {
                    push_text(&buffer, pieces);
                }
            }
            CallReaderState::Call(mut call) => {
                let mut out = String::new();
                if stream == StreamState::End
                    && call.arguments.close(&buffer, call.format, &mut out)
                {
                    push_arguments(out, pieces);
                    pieces.push(AnswerPiece::CallEnd);
                } else {
                    pieces.push(AnswerPiece::CallCut);
                }
            }
            CallReaderState::Broken => pieces.push(AnswerPiece::CallCut),
            CallReaderState::Tail(_) => {}
        }
    }

    /// Settles the beginning of the buffered text. Returns whether there may be more to settle.
    fn step(&mut self, stream: StreamState, pieces: &mut Vec<AnswerPiece>) -> bool {
        match &mut self.state {
            CallReaderState::Bare(_) => self.bare(stream, pieces),
            CallReaderState::Whole(_) => self.whole(stream, pieces),
            CallReaderState::Text => self.text(stream, pieces),
            CallReaderState::Envelope(_) => self.envelope(stream, pieces),
            CallReaderState::Call(_) => self.call(stream, pieces),
            CallReaderState::Tail(CallTail { rest: Some(_), .. }) => self.rest(stream),
            CallReaderState::Tail(_) => self.tail(stream),
            CallReaderState::Broken => self.broken(pieces),
        }
    }

    fn bare(&mut self, stream: StreamState, pieces: &mut Vec<AnswerPiece>) -> bool {
        let CallReaderState::Bare(whole) = &mut self.state else { return false };
        match head::bare(self.format, &self.tools, Scan::new(&self.buffer, stream)) {
            Err(ScanError::Incomplete) => return false,
            Ok(head) if self.n_left > 0 => self.begin(0, head, pieces),
            _ => {
                let whole = whole.take().map(CallReaderState::Whole);
                self.state = whole.unwrap_or(CallReaderState::Text);
            }
        }
        true
    }

    fn whole(&mut self, stream: StreamState, pieces: &mut Vec<AnswerPiece>) -> bool {
        let CallReaderState::Whole(whole) = &mut self.state else { return false };
        match whole.read(&self.buffer, &self.tools, stream) {
            Err(ScanError::Incomplete) if stream == StreamState::More => return false,
            Ok((tool_idx, arguments)) if self.n_left > 0 => {
                self.buffer.clear();
                self.n_left -= 1;
                let name = self.tools[tool_idx].name.clone();
                pieces.push(AnswerPiece::Call { name, id: None });
                push_arguments(arguments, pieces);
                self.end_call(self.format, ArgumentsStart::Empty, pieces);
            }
            _ => self.state = CallReaderState::Text,
        }
        true
    }

    fn text(&mut self, stream: StreamState, pieces: &mut Vec<AnswerPiece>) -> bool {
        let mut is_line_start = self.is_line_start;
        for (at, next) in self.buffer.char_indices() {
            if next.is_whitespace() {
                is_line_start |= next == '\n';
                continue;
            }
            if self.n_left > 0 && (next == '<' || is_line_start) {
                let scan = Scan::new(&self.buffer[at..], stream);
                match head::find(self.format, &self.tools, scan, is_line_start) {
                    Ok(head) => {
                        self.begin(at, head, pieces);
                        return true;
                    }
                    Err(ScanError::Incomplete) => {
                        self.settle_text(at, pieces);
                        return false;
                    }
                    Err(ScanError::Mismatch) => {}
                }
            }
            is_line_start = false;
        }
        self.settle_text(self.buffer.len(), pieces);
        false
    }

    /// Emits text except whitespace at its end. Returns the length of that whitespace.
    fn settle_text(&mut self, n_bytes: usize, pieces: &mut Vec<AnswerPiece>) -> usize {
        let n_settled = scan::n_settled(&self.buffer[..n_bytes]);
        self.emit_text(n_settled, pieces);
        n_bytes - n_settled
    }

    fn emit_text(&mut self, n_bytes: usize, pieces: &mut Vec<AnswerPiece>) {
        let text: String = self.buffer.drain(..n_bytes).collect();
        if text.is_empty() {
            return;
        }
        push_text(&text, pieces);
        self.is_after_call = false;
        let line = text.rsplit('\n').next().unwrap_or(&text);
        let is_new = line.len() < text.len();
        self.is_line_start = line.trim().is_empty() && (is_new || self.is_line_start);
    }

    fn begin(&mut self, at: usize, head: CallHead, pieces: &mut Vec<AnswerPiece>) {
        let n_blank = self.settle_text(at, pieces);
        match head.body {
            CallBody::Envelope { is_marked } => {
                let (json, value) = (JsonReader::new(), String::new());
                let at = n_blank + head.n_bytes;
                let envelope = Envelope { is_marked, start: n_blank, at, json, value };
                self.state = CallReaderState::Envelope(envelope);
            }
            CallBody::Arguments(CalledTool { tool_idx, ref id }, arguments_start) => {
                let format = head.format;
                let name = self.tools[tool_idx].name.clone();
                pieces.push(AnswerPiece::Call { name, id: id.clone() });
                self.n_left -= 1;
                self.buffer.drain(..n_blank + head.n_bytes);
                let Some((arguments, start)) = ArgumentsReader::new(&head, arguments_start) else {
                    push_arguments("{}".to_owned(), pieces);
                    return self.end_call(format, arguments_start, pieces);
                };
                push_arguments(start.to_owned(), pieces);
                self.state = CallReaderState::Call(OpenCall { format, tool_idx, arguments });
            }
        }
    }

    fn end_call(
        &mut self,
        format: &'static CallFormat,
        arguments_start: ArgumentsStart,
        pieces: &mut Vec<AnswerPiece>,
    ) {
        pieces.push(AnswerPiece::CallEnd);
        let is_inside = head::has_envelope(format) && arguments_start != ArgumentsStart::Empty;
        let rest = is_inside.then(|| ObjectRest { json: JsonReader::after_member(), at: 0 });
        self.state = CallReaderState::Tail(CallTail { format, rest, may_close_arguments: true });
        self.is_after_call = true;
        self.is_line_start = true;
    }

    fn call(&mut self, stream: StreamState, pieces: &mut Vec<AnswerPiece>) -> bool {
        let CallReaderState::Call(call) = &mut self.state else { return false };
        let context = ArgumentsContext {
            format: call.format,
            tools: &self.tools,
            tool_idx: call.tool_idx,
            stream,
        };
        let mut out = String::new();
        let (n_bytes, outcome) = call.arguments.step(&self.buffer, &context, &mut out);
        push_arguments(out, pieces);
        self.buffer.drain(..n_bytes);
        match outcome {
            ArgumentsOutcome::Wait => return false,
            ArgumentsOutcome::Again => {}
            ArgumentsOutcome::Done => {
                let format = call.format;
                self.end_call(format, ArgumentsStart::Object, pieces);
            }
            ArgumentsOutcome::Broken => self.state = CallReaderState::Broken,
        }
        true
    }

    /// Skips unreadable text up to the next marker of a call or a section.
    fn broken(&mut self, pieces: &mut Vec<AnswerPiece>) -> bool {
        let closers = head::closers(self.format);
        let markers = [closers, head::openers(self.format)];
        let markers = markers.as_flattened().iter().filter(|it| !it.is_empty());
        let found = markers.clone().filter_map(|it| Some((self.buffer.find(it)?, *it))).min();
        let Some((at, marker)) = found else {
            let unfinished = markers.map(|it| scan::n_unfinished(&self.buffer, it)).max();
            let n_bytes = self.buffer.len() - unfinished.unwrap_or(0);
            self.buffer.drain(..n_bytes);
            return false;
        };
        let is_closer = closers.contains(&marker);
        let n_bytes = at + if is_closer { marker.len() } else { 0 };
        self.buffer.drain(..n_bytes);
        pieces.push(AnswerPiece::CallCut);
        self.is_after_call = true;
        self.is_line_start = true;
        let tail = CallTail { format: self.format, rest: None, may_close_arguments: false };
        self.state = if is_closer { CallReaderState::Tail(tail) } else { CallReaderState::Text };
        true
    }

    /// Drops the rest of an object if it consists of members only. Their strings must contain no
    /// marker: otherwise a surplus quote would turn the following text into a member.
    fn rest(&mut self, stream: StreamState) -> bool {
        let CallReaderState::Tail(CallTail { format, rest: Some(rest), .. }) = &mut self.state
        else {
            return false;
        };
        let context = ArgumentsContext { format, tools: &self.tools, tool_idx: 0, stream };
        let found = match rest.read(&self.buffer, &context) {
            RestKind::Unknown if stream == StreamState::More => return false,
            RestKind::Unknown if rest.json.close(&mut String::new()) => {
                RestKind::Empty(self.buffer.len())
            }
            RestKind::Unknown => RestKind::Text,
            found => found,
        };
        match (found, &mut self.state) {
            (RestKind::Empty(n_bytes), CallReaderState::Tail(tail)) => {
                self.buffer.drain(..n_bytes);
                tail.rest = None;
            }
            _ => self.state = CallReaderState::Text,
        }
        true
    }

    fn tail(&mut self, stream: StreamState) -> bool {
        let CallReaderState::Tail(tail) = &mut self.state else { return false };
        let [call, calls] = head::closers(self.format);
        let own = tail.format.after_arguments.trim();
        let own = if tail.may_close_arguments && own != "}" { own } else { "" };
        let start = Scan::new(&self.buffer, stream);
        let mut scan = start;
        let next = [call, calls, own];
        let found = scan.blank().and_then(|()| {
            scan.one_of(&next).map(|_| ()).or_else(|error| {
                let is_json =
                    tail.may_close_arguments && tail.format.arguments == ArgumentsForm::Json;
                if error == ScanError::Mismatch && is_json {
                    too_many(&mut scan, &next)
                } else {
                    Err(error)
                }
            })
        });
        let found = match found {
            Err(ScanError::Mismatch) => separator(start, tail.format).map(|after| scan = after),
            found => found,
        };
        match found {
            Ok(()) => {
                tail.may_close_arguments = false;
                let n_bytes = start.until(scan).len();
                self.buffer.drain(..n_bytes);
                true
            }
            Err(ScanError::Incomplete) => false,
            Err(ScanError::Mismatch) => {
                // The end of the answer may have cut a marker.
                if stream != StreamState::More && begins_closer(&self.buffer, self.format) {
                    self.buffer.clear();
                }
                self.state = CallReaderState::Text;
                true
            }
        }
    }

    fn envelope(&mut self, stream: StreamState, pieces: &mut Vec<AnswerPiece>) -> bool {
        let CallReaderState::Envelope(envelope) = &mut self.state else { return false };
        let context =
            ArgumentsContext { format: self.format, tools: &self.tools, tool_idx: 0, stream };
        if !envelope.json.is_done() {
            let text = &self.buffer[envelope.at..];
            let (n_bytes, outcome) =
                arguments::json_step(&mut envelope.json, text, &context, &mut envelope.value);
            envelope.at += n_bytes;
            match outcome {
                ArgumentsOutcome::Wait if stream == StreamState::More => return false,
                ArgumentsOutcome::Wait
                    if stream == StreamState::End && envelope.json.close(&mut envelope.value) => {}
                ArgumentsOutcome::Done => {}
                _ => return self.give_up_envelope(pieces),
            }
        }
        if !envelope.is_marked {
            let [call, calls] = head::closers(self.format);
            let [section, opener] = head::openers(self.format);
            let between = self.format.between_calls.trim();
            let mut scan = Scan::new(&self.buffer[envelope.at..], stream);
            match scan.ends_with(&[call, calls, section, opener, between, "{"]) {
                Ok(()) => {}
                Err(ScanError::Incomplete) => return false,
                Err(ScanError::Mismatch) => return self.give_up_envelope(pieces),
            }
        }
        let calls = envelope::calls(&envelope.value, &self.tools);
        let Some(calls) = calls.filter(|calls| calls.len() <= self.n_left) else {
            return self.give_up_envelope(pieces);
        };
        self.n_left -= calls.len();
        self.buffer.drain(..envelope.at);
        for (tool_idx, arguments) in calls {
            let name = self.tools[tool_idx].name.clone();
            pieces.push(AnswerPiece::Call { name, id: None });
            push_arguments(arguments, pieces);
            self.end_call(self.format, ArgumentsStart::Empty, pieces);
        }
        true
    }

    /// Treats the JSON as text; a call may begin after its first character.
    fn give_up_envelope(&mut self, pieces: &mut Vec<AnswerPiece>) -> bool {
        let CallReaderState::Envelope(envelope) = &self.state else { return false };
        let start = envelope.start;
        let n_first = self.buffer[start..].chars().next().map_or(0, char::len_utf8);
        self.state = CallReaderState::Text;
        self.emit_text(start + n_first, pieces);
        true
    }
}

impl ObjectRest {
    fn read(&mut self, buffer: &str, context: &ArgumentsContext<'_>) -> RestKind {
        for (n_bytes, next) in buffer[self.at..].char_indices() {
            let at = self.at + n_bytes;
            if at >= REST_BYTES_MAX {
                return RestKind::Text;
            }
            let rest = &buffer[at..];
            match arguments::marker_here(Scan::new(rest, context.stream), context.format) {
                Ok(()) => return self.ends_before_marker(&buffer[..at]),
                Err(ScanError::Incomplete) => {
                    self.at = at;
                    return RestKind::Unknown;
                }
                Err(ScanError::Mismatch) => {}
            }
            let may_be_cut = context.stream != StreamState::More && !self.json.is_in_text();
            if may_be_cut && begins_closer(rest, context.format) {
                return self.ends_before_marker(&buffer[..at]);
            }
            match self.json.push(next, &mut String::new()) {
                JsonProgress::More => {}
                JsonProgress::Done => return RestKind::Empty(at + next.len_utf8()),
                JsonProgress::Broken => return RestKind::Text,
            }
        }
        self.at = buffer.len();
        RestKind::Unknown
    }

    fn ends_before_marker(&mut self, rest: &str) -> RestKind {
        let is_noise = rest.split(TOO_MANY).all(|it| it.trim().is_empty());
        let is_empty = is_noise || self.json.close(&mut String::new());
        if is_empty { RestKind::Empty(rest.len()) } else { RestKind::Text }
    }
}

/// Characters of which models sometimes write one too many; it is ignored only in front of a
/// marker.
const TOO_MANY: [char; 2] = ['}', '"'];

fn too_many(scan: &mut Scan<'_>, next: &[&str]) -> ScanResult<()> {
    scan.one_character(&TOO_MANY)?;
    { *scan }.ends_with(next)
}

/// Takes the text between two calls, in front of a call or the end of the answer.
fn separator<'a>(start: Scan<'a>, format: &CallFormat) -> ScanResult<Scan<'a>> {
    let mut scan = start;
    scan.blank()?;
    scan.one_of(&[format.between_calls.trim()])?;
    { scan }.ends_with(&["{"])?;
    Ok(scan)
}

/// Returns whether the text is the beginning of a closing marker.
fn begins_closer(text: &str, format: &CallFormat) -> bool {
    let text = text.trim();
    head::closers(format).iter().any(|marker| !text.is_empty() && marker.starts_with(text))
}

fn push_text(text: &str, pieces: &mut Vec<AnswerPiece>) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(AnswerPiece::Text(last)) => last.push_str(text),
        _ => pieces.push(AnswerPiece::Text(text.to_owned())),
    }
}

fn push_arguments(text: String, pieces: &mut Vec<AnswerPiece>) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(AnswerPiece::Arguments(last)) => last.push_str(&text),
        _ => pieces.push(AnswerPiece::Arguments(text)),
    }
}
