//! Finds calls in the text of an answer, while it arrives.
//!
//! Whitespace before the first marker of a call, and between calls, belongs to the markers.
//! **Invariant:** the result does not depend on how the text is split into chunks; everything that
//! is not a call of an offered tool is emitted as text, byte for byte; every call that begins also
//! ends, complete or cut.

use std::sync::Arc;

use crate::calls::arguments::{self, ArgumentsReader};
use crate::calls::envelope;
use crate::calls::format::{ArgumentsForm, CallFormat};
use crate::calls::head::{self, Begun, Body, Head, Named};
use crate::calls::json::{JsonReader, Progress};
use crate::calls::scan::{self, Coming, Found, Miss, Scan};
use crate::calls::tagged::{Outcome, Place};
use crate::calls::whole::WholeReader;
use crate::conversation::Tool;
use crate::piece::Piece;

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
    state: State,
    /// Text that is not settled yet.
    held: String,
    /// Whether the held text begins a line, apart from whitespace.
    is_line_start: bool,
    /// Whether only whitespace came since the last call.
    is_behind_call: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// At the start of an answer that may consist of a single call. The whole text is held.
    Whole(WholeReader),
    Text,
    Envelope(Envelope),
    Call(Call),
    /// After the arguments, among closing markers.
    Tail(Tail),
    /// After unreadable text, in a call that has not ended.
    Broken,
}

/// JSON that may turn out to be calls. The whole text is held.
#[derive(Clone, Debug)]
struct Envelope {
    is_marked: bool,
    /// The offset of the call in the held text, after whitespace.
    start: usize,
    /// The offset up to which the JSON is read.
    at: usize,
    json: JsonReader,
    value: String,
}

/// A call that has begun.
#[derive(Clone, Debug)]
struct Call {
    format: &'static CallFormat,
    tool_idx: usize,
    arguments: ArgumentsReader,
}

#[derive(Clone, Debug)]
struct Tail {
    /// The format of the call.
    format: &'static CallFormat,
    /// The rest of the object that contains the arguments; it is held.
    rest: Option<Rest>,
    /// Whether the closing marker of the arguments may still come.
    may_close_arguments: bool,
}

/// The text after the arguments in the same object.
#[derive(Clone, Debug)]
struct Rest {
    json: JsonReader,
    /// The offset up to which it is read.
    at: usize,
}

/// The kind of the rest of an object.
#[derive(Clone, Copy, Debug)]
enum RestIs {
    Unknown,
    /// Without content, up to this offset.
    Empty(usize),
    Text,
}

impl CallReader {
    /// Creates a reader for answers that write calls of these tools in this format.
    pub(crate) fn new(format: &'static CallFormat, tools: &[Tool]) -> Self {
        let (state, held) = (State::Text, String::new());
        let (tools, n_left) = (tools.into(), usize::MAX);
        Self { format, tools, n_left, state, held, is_line_start: true, is_behind_call: false }
    }

    /// Also accepts an answer that is one JSON object without any marker.
    pub(crate) fn with_whole_json(self) -> Self {
        Self { state: State::Whole(WholeReader::default()), ..self }
    }

    /// Undoes [`CallReader::with_whole_json`].
    pub(crate) fn without_whole_json(self) -> Self {
        Self { state: State::Text, ..self }
    }

    /// Limits the answer to `n_calls_max` calls; anything that looks like a further call is text.
    pub(crate) fn with_calls_max(self, n_calls_max: usize) -> Self {
        Self { n_left: n_calls_max, ..self }
    }

    /// Returns whether a call has begun whose end is not certain.
    pub(crate) fn is_in_call(&self) -> bool {
        !matches!(self.state, State::Whole(_) | State::Text | State::Envelope(_))
    }

    /// Takes text and appends the pieces that became certain.
    pub(crate) fn push(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        self.held.push_str(text);
        while self.step(Coming::More, pieces) {}
    }

    /// Ends the answer and appends the remaining pieces.
    pub(crate) fn finish(&mut self, coming: Coming, pieces: &mut Vec<Piece>) {
        while self.step(coming, pieces) {}
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Whole(_) | State::Text | State::Envelope(_) => {
                if !(self.is_behind_call && held.trim().is_empty()) {
                    push_text(&held, pieces);
                }
            }
            State::Call(mut call) => {
                let mut out = String::new();
                if coming == Coming::End && call.arguments.close(&held, call.format, &mut out) {
                    push_arguments(out, pieces);
                    pieces.push(Piece::CallEnd);
                } else {
                    pieces.push(Piece::CallCut);
                }
            }
            State::Broken => pieces.push(Piece::CallCut),
            State::Tail(_) => {}
        }
    }

    /// Settles the beginning of the held text. Returns whether there may be more to settle.
    fn step(&mut self, coming: Coming, pieces: &mut Vec<Piece>) -> bool {
        match &mut self.state {
            State::Whole(_) => self.whole(coming, pieces),
            State::Text => self.text(coming, pieces),
            State::Envelope(_) => self.envelope(coming, pieces),
            State::Call(_) => self.call(coming, pieces),
            State::Tail(Tail { rest: Some(_), .. }) => self.rest(coming),
            State::Tail(_) => self.tail(coming),
            State::Broken => self.broken(pieces),
        }
    }

    fn whole(&mut self, coming: Coming, pieces: &mut Vec<Piece>) -> bool {
        let State::Whole(whole) = &mut self.state else { return false };
        match whole.read(&self.held, &self.tools, coming) {
            Err(Miss::Partial) if coming == Coming::More => return false,
            Ok((tool_idx, arguments)) if self.n_left > 0 => {
                self.held.clear();
                self.n_left -= 1;
                let name = self.tools[tool_idx].name.clone();
                pieces.push(Piece::Call { name, id: None });
                push_arguments(arguments, pieces);
                self.end_call(self.format, Begun::Empty, pieces);
            }
            _ => self.state = State::Text,
        }
        true
    }

    fn text(&mut self, coming: Coming, pieces: &mut Vec<Piece>) -> bool {
        let mut is_line_start = self.is_line_start;
        for (at, next) in self.held.char_indices() {
            if next.is_whitespace() {
                is_line_start |= next == '\n';
                continue;
            }
            if self.n_left > 0 && (next == '<' || is_line_start) {
                let scan = Scan::new(&self.held[at..], coming);
                match head::find(self.format, &self.tools, scan, is_line_start) {
                    Ok(head) => {
                        self.begin(at, head, pieces);
                        return true;
                    }
                    Err(Miss::Partial) => {
                        self.settle_text(at, pieces);
                        return false;
                    }
                    Err(Miss::No) => {}
                }
            }
            is_line_start = false;
        }
        self.settle_text(self.held.len(), pieces);
        false
    }

    /// Emits text except whitespace at its end. Returns the length of that whitespace.
    fn settle_text(&mut self, n_bytes: usize, pieces: &mut Vec<Piece>) -> usize {
        let n_settled = scan::n_settled(&self.held[..n_bytes]);
        self.let_go(n_settled, pieces);
        n_bytes - n_settled
    }

    fn let_go(&mut self, n_bytes: usize, pieces: &mut Vec<Piece>) {
        let text: String = self.held.drain(..n_bytes).collect();
        if text.is_empty() {
            return;
        }
        push_text(&text, pieces);
        self.is_behind_call = false;
        let line = text.rsplit('\n').next().unwrap_or(&text);
        let is_new = line.len() < text.len();
        self.is_line_start = line.trim().is_empty() && (is_new || self.is_line_start);
    }

    fn begin(&mut self, at: usize, head: Head, pieces: &mut Vec<Piece>) {
        let n_blank = self.settle_text(at, pieces);
        match head.body {
            Body::Envelope { is_marked } => {
                let (json, value) = (JsonReader::new(), String::new());
                let at = n_blank + head.n_bytes;
                let envelope = Envelope { is_marked, start: n_blank, at, json, value };
                self.state = State::Envelope(envelope);
            }
            Body::Arguments(Named { tool_idx, ref id }, begun) => {
                let format = head.format;
                let name = self.tools[tool_idx].name.clone();
                pieces.push(Piece::Call { name, id: id.clone() });
                self.n_left -= 1;
                self.held.drain(..n_blank + head.n_bytes);
                let Some((arguments, start)) = ArgumentsReader::new(&head, begun) else {
                    push_arguments("{}".to_owned(), pieces);
                    return self.end_call(format, begun, pieces);
                };
                push_arguments(start.to_owned(), pieces);
                self.state = State::Call(Call { format, tool_idx, arguments });
            }
        }
    }

    fn end_call(&mut self, format: &'static CallFormat, begun: Begun, pieces: &mut Vec<Piece>) {
        pieces.push(Piece::CallEnd);
        let is_inside = head::has_envelope(format) && begun != Begun::Empty;
        let rest = is_inside.then(|| Rest { json: JsonReader::behind_member(), at: 0 });
        self.state = State::Tail(Tail { format, rest, may_close_arguments: true });
        self.is_behind_call = true;
        self.is_line_start = true;
    }

    fn call(&mut self, coming: Coming, pieces: &mut Vec<Piece>) -> bool {
        let State::Call(call) = &mut self.state else { return false };
        let place =
            Place { format: call.format, tools: &self.tools, tool_idx: call.tool_idx, coming };
        let mut out = String::new();
        let (n_bytes, outcome) = call.arguments.step(&self.held, &place, &mut out);
        push_arguments(out, pieces);
        self.held.drain(..n_bytes);
        match outcome {
            Outcome::Wait => return false,
            Outcome::Again => {}
            Outcome::Done => {
                let format = call.format;
                self.end_call(format, Begun::Object, pieces);
            }
            Outcome::Broken => self.state = State::Broken,
        }
        true
    }

    /// Skips unreadable text up to the next marker of a call or a section.
    fn broken(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let closers = head::closers(self.format);
        let markers = [closers, head::openers(self.format)];
        let markers = markers.as_flattened().iter().filter(|it| !it.is_empty());
        let found = markers.clone().filter_map(|it| Some((self.held.find(it)?, *it))).min();
        let Some((at, marker)) = found else {
            let unfinished = markers.map(|it| scan::n_unfinished(&self.held, it)).max();
            let n_bytes = self.held.len() - unfinished.unwrap_or(0);
            self.held.drain(..n_bytes);
            return false;
        };
        let is_closer = closers.contains(&marker);
        let n_bytes = at + if is_closer { marker.len() } else { 0 };
        self.held.drain(..n_bytes);
        pieces.push(Piece::CallCut);
        self.is_behind_call = true;
        self.is_line_start = true;
        let tail = Tail { format: self.format, rest: None, may_close_arguments: false };
        self.state = if is_closer { State::Tail(tail) } else { State::Text };
        true
    }

    /// Drops the rest of an object if it consists of members only. Their strings must contain no
    /// marker: otherwise a surplus quote would turn the following text into a member.
    fn rest(&mut self, coming: Coming) -> bool {
        let State::Tail(Tail { format, rest: Some(rest), .. }) = &mut self.state else {
            return false;
        };
        let place = Place { format, tools: &self.tools, tool_idx: 0, coming };
        let found = match rest.read(&self.held, &place) {
            RestIs::Unknown if coming == Coming::More => return false,
            RestIs::Unknown if rest.json.close(&mut String::new()) => {
                RestIs::Empty(self.held.len())
            }
            RestIs::Unknown => RestIs::Text,
            found => found,
        };
        match (found, &mut self.state) {
            (RestIs::Empty(n_bytes), State::Tail(tail)) => {
                self.held.drain(..n_bytes);
                tail.rest = None;
            }
            _ => self.state = State::Text,
        }
        true
    }

    fn tail(&mut self, coming: Coming) -> bool {
        let State::Tail(tail) = &mut self.state else { return false };
        let [call, calls] = head::closers(self.format);
        let own = tail.format.behind_arguments.trim();
        let own = if tail.may_close_arguments && own != "}" { own } else { "" };
        let start = Scan::new(&self.held, coming);
        let mut scan = start;
        let next = [call, calls, own];
        let found = scan.blank().and_then(|()| {
            scan.one_of(&next).map(|_| ()).or_else(|miss| {
                let is_json =
                    tail.may_close_arguments && tail.format.arguments == ArgumentsForm::Json;
                if miss == Miss::No && is_json { too_many(&mut scan, &next) } else { Err(miss) }
            })
        });
        match found {
            Ok(()) => {
                tail.may_close_arguments = false;
                let n_bytes = start.until(scan).len();
                self.held.drain(..n_bytes);
                true
            }
            Err(Miss::Partial) => false,
            Err(Miss::No) => {
                // The end of the answer may have cut a marker.
                if coming != Coming::More && begins_closer(&self.held, self.format) {
                    self.held.clear();
                }
                self.state = State::Text;
                true
            }
        }
    }

    fn envelope(&mut self, coming: Coming, pieces: &mut Vec<Piece>) -> bool {
        let State::Envelope(envelope) = &mut self.state else { return false };
        let place = Place { format: self.format, tools: &self.tools, tool_idx: 0, coming };
        if !envelope.json.is_done() {
            let text = &self.held[envelope.at..];
            let (n_bytes, outcome) =
                arguments::json_step(&mut envelope.json, text, &place, &mut envelope.value);
            envelope.at += n_bytes;
            match outcome {
                Outcome::Wait if coming == Coming::More => return false,
                Outcome::Wait
                    if coming == Coming::End && envelope.json.close(&mut envelope.value) => {}
                Outcome::Done => {}
                _ => return self.give_up_envelope(pieces),
            }
        }
        if !envelope.is_marked {
            let [call, calls] = head::closers(self.format);
            let [section, opener] = head::openers(self.format);
            let mut scan = Scan::new(&self.held[envelope.at..], coming);
            match scan.ends_with(&[call, calls, section, opener, "{"]) {
                Ok(()) => {}
                Err(Miss::Partial) => return false,
                Err(Miss::No) => return self.give_up_envelope(pieces),
            }
        }
        let calls = envelope::calls(&envelope.value, &self.tools);
        let Some(calls) = calls.filter(|calls| calls.len() <= self.n_left) else {
            return self.give_up_envelope(pieces);
        };
        self.n_left -= calls.len();
        self.held.drain(..envelope.at);
        for (tool_idx, arguments) in calls {
            let name = self.tools[tool_idx].name.clone();
            pieces.push(Piece::Call { name, id: None });
            push_arguments(arguments, pieces);
            self.end_call(self.format, Begun::Empty, pieces);
        }
        true
    }

    /// Treats the JSON as text; a call may begin after its first character.
    fn give_up_envelope(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let State::Envelope(envelope) = &self.state else { return false };
        let start = envelope.start;
        let n_first = self.held[start..].chars().next().map_or(0, char::len_utf8);
        self.state = State::Text;
        self.let_go(start + n_first, pieces);
        true
    }
}

impl Rest {
    fn read(&mut self, held: &str, place: &Place<'_>) -> RestIs {
        for (n_bytes, next) in held[self.at..].char_indices() {
            let at = self.at + n_bytes;
            if at >= REST_BYTES_MAX {
                return RestIs::Text;
            }
            let rest = &held[at..];
            match arguments::marker_here(Scan::new(rest, place.coming), place.format) {
                Ok(()) => return self.ends_before_marker(&held[..at]),
                Err(Miss::Partial) => {
                    self.at = at;
                    return RestIs::Unknown;
                }
                Err(Miss::No) => {}
            }
            let may_be_cut = place.coming != Coming::More && !self.json.is_in_text();
            if may_be_cut && begins_closer(rest, place.format) {
                return self.ends_before_marker(&held[..at]);
            }
            match self.json.push(next, &mut String::new()) {
                Progress::More => {}
                Progress::Done => return RestIs::Empty(at + next.len_utf8()),
                Progress::Broken => return RestIs::Text,
            }
        }
        self.at = held.len();
        RestIs::Unknown
    }

    fn ends_before_marker(&mut self, rest: &str) -> RestIs {
        let is_noise = rest.split(TOO_MANY).all(|it| it.trim().is_empty());
        let is_empty = is_noise || self.json.close(&mut String::new());
        if is_empty { RestIs::Empty(rest.len()) } else { RestIs::Text }
    }
}

/// Characters of which models sometimes write one too many; it is ignored only in front of a
/// marker.
const TOO_MANY: [char; 2] = ['}', '"'];

fn too_many(scan: &mut Scan<'_>, next: &[&str]) -> Found<()> {
    scan.one_character(&TOO_MANY)?;
    { *scan }.ends_with(next)
}

/// Returns whether the text is the beginning of a closing marker.
fn begins_closer(text: &str, format: &CallFormat) -> bool {
    let text = text.trim();
    head::closers(format).iter().any(|marker| !text.is_empty() && marker.starts_with(text))
}

fn push_text(text: &str, pieces: &mut Vec<Piece>) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Text(last)) => last.push_str(text),
        _ => pieces.push(Piece::Text(text.to_owned())),
    }
}

fn push_arguments(text: String, pieces: &mut Vec<Piece>) {
    match pieces.last_mut() {
        _ if text.is_empty() => {}
        Some(Piece::Arguments(last)) => last.push_str(&text),
        _ => pieces.push(Piece::Arguments(text)),
    }
}
