//! Finds calls in the text of an answer, as it comes.
//!
//! Blank space before the first marker of a call, and between calls, belongs to the markers.
//! **Invariant:** how the text is cut into pieces does not matter; what is no call of an offered
//! tool comes out as text, byte for byte; every call that began ends, one way or the other.

use std::sync::Arc;

use crate::calls::arguments::{self, ArgumentsReader};
use crate::calls::envelope;
use crate::calls::format::CallFormat;
use crate::calls::head::{self, Begun, Body, Head, Named};
use crate::calls::json::JsonReader;
use crate::calls::scan::{self, BLANK_BYTES_MAX, Coming, Miss, Scan};
use crate::calls::tagged::{Outcome, Place};
use crate::conversation::Tool;
use crate::piece::Piece;

/// The calls of an answer on their way to the client.
#[derive(Clone, Debug)]
pub(crate) struct CallReader {
    format: &'static CallFormat,
    tools: Arc<[Tool]>,
    state: State,
    /// What is not settled yet.
    held: String,
    /// Whether what is held begins a line of the text, but for blank space.
    is_line_start: bool,
    /// Whether nothing but blank space came since a call.
    is_behind_call: bool,
}

#[derive(Clone, Debug)]
enum State {
    Text,
    Envelope(Envelope),
    Call(Call),
    /// Behind arguments, where markers are closed.
    Tail(Tail),
    /// Behind what cannot be read: all that was written for the call, which goes on.
    Broken(String),
}

/// JSON that may turn out to be calls. All of it is held.
#[derive(Clone, Debug)]
struct Envelope {
    is_marked: bool,
    /// Where the call begins in what is held, behind what is blank.
    start: usize,
    /// How far the JSON is read.
    at: usize,
    json: JsonReader,
    value: String,
}

/// A call that began.
#[derive(Clone, Debug)]
struct Call {
    format: &'static CallFormat,
    tool_idx: usize,
    arguments: ArgumentsReader,
    written: String,
}

#[derive(Clone, Debug)]
struct Tail {
    /// How the call was written.
    format: &'static CallFormat,
    /// The rest of the object that has the arguments in it.
    envelope: Option<JsonReader>,
    /// Whether a closing marker came.
    is_closed: bool,
}

impl CallReader {
    /// A reader for answers that write calls of these tools in this format.
    pub(crate) fn new(format: &'static CallFormat, tools: &[Tool]) -> Self {
        let (state, held) = (State::Text, String::new());
        let tools = tools.into();
        Self { format, tools, state, held, is_line_start: true, is_behind_call: false }
    }

    /// Whether a call began whose end is not certain.
    pub(crate) fn is_in_call(&self) -> bool {
        !matches!(self.state, State::Text | State::Envelope(_))
    }

    /// What is certain, now that this text came.
    pub(crate) fn push(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        self.held.push_str(text);
        while self.step(Coming::More, pieces) {}
    }

    /// The rest: the answer is over.
    pub(crate) fn finish(&mut self, coming: Coming, pieces: &mut Vec<Piece>) {
        while self.step(coming, pieces) {}
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Text) {
            State::Text | State::Envelope(_) => {
                if !(self.is_behind_call && held.trim().is_empty()) {
                    push_text(&held, pieces);
                }
            }
            State::Call(mut call) => {
                let mut out = String::new();
                if coming == Coming::End && call.arguments.close(&held, &mut out) {
                    push_arguments(out, pieces);
                    pieces.push(Piece::CallEnd);
                } else {
                    pieces.push(Piece::CallCut { written: call.written + &held });
                }
            }
            State::Broken(written) => pieces.push(Piece::CallCut { written: written + &held }),
            State::Tail(_) => {}
        }
    }

    /// Settles the beginning of what is held; whether there may be more to settle.
    fn step(&mut self, coming: Coming, pieces: &mut Vec<Piece>) -> bool {
        match &mut self.state {
            State::Text => self.text(coming, pieces),
            State::Envelope(_) => self.envelope(coming, pieces),
            State::Call(_) => self.call(coming, pieces),
            State::Tail(_) => self.tail(coming),
            State::Broken(_) => self.broken(pieces),
        }
    }

    fn text(&mut self, coming: Coming, pieces: &mut Vec<Piece>) -> bool {
        let mut is_line_start = self.is_line_start;
        for (at, next) in self.held.char_indices() {
            if next.is_whitespace() {
                is_line_start |= next == '\n';
                continue;
            }
            if next == '<' || is_line_start {
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

    /// Lets go of text, but for blank space at its end. Returns how much of that there is.
    fn settle_text(&mut self, n_bytes: usize, pieces: &mut Vec<Piece>) -> usize {
        let text = &self.held[..n_bytes];
        let mut n_settled = text.trim_end().len();
        while n_bytes - n_settled > BLANK_BYTES_MAX || !text.is_char_boundary(n_settled) {
            n_settled += 1;
        }
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
                self.held.drain(..n_blank);
                let written: String = self.held.drain(..head.n_bytes).collect();
                let Some((arguments, start)) = ArgumentsReader::new(&head, begun) else {
                    push_arguments("{}".to_owned(), pieces);
                    return self.end_call(format, begun, pieces);
                };
                push_arguments(start.to_owned(), pieces);
                self.state = State::Call(Call { format, tool_idx, arguments, written });
            }
        }
    }

    fn end_call(&mut self, format: &'static CallFormat, begun: Begun, pieces: &mut Vec<Piece>) {
        pieces.push(Piece::CallEnd);
        let is_inside = head::has_envelope(format) && begun != Begun::Empty;
        let envelope = is_inside.then(JsonReader::behind_member);
        self.state = State::Tail(Tail { format, envelope, is_closed: false });
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
        call.written.extend(self.held.drain(..n_bytes));
        match outcome {
            Outcome::Wait => return false,
            Outcome::Again => {}
            Outcome::Done => {
                let format = call.format;
                self.end_call(format, Begun::Object, pieces);
            }
            Outcome::Broken => self.state = State::Broken(std::mem::take(&mut call.written)),
        }
        true
    }

    /// What cannot be read is skipped up to the next marker around calls.
    fn broken(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let State::Broken(written) = &mut self.state else { return false };
        let closers = head::closers(self.format);
        let markers = [closers, head::openers(self.format)];
        let markers = markers.as_flattened().iter().filter(|it| !it.is_empty());
        let found = markers.clone().filter_map(|it| Some((self.held.find(it)?, *it))).min();
        let Some((at, marker)) = found else {
            let unfinished = markers.map(|it| scan::n_unfinished(&self.held, it)).max();
            let n_bytes = self.held.len() - unfinished.unwrap_or(0);
            written.extend(self.held.drain(..n_bytes));
            return false;
        };
        let is_closer = closers.contains(&marker);
        let n_bytes = at + if is_closer { marker.len() } else { 0 };
        written.extend(self.held.drain(..n_bytes));
        pieces.push(Piece::CallCut { written: std::mem::take(written) });
        self.is_behind_call = true;
        self.is_line_start = true;
        let tail = Tail { format: self.format, envelope: None, is_closed: true };
        self.state = if is_closer { State::Tail(tail) } else { State::Text };
        true
    }

    fn tail(&mut self, coming: Coming) -> bool {
        let State::Tail(tail) = &mut self.state else { return false };
        let place = Place { format: tail.format, tools: &self.tools, tool_idx: 0, coming };
        if let Some(json) = &mut tail.envelope {
            let (n_bytes, outcome) =
                arguments::json_step(json, &self.held, &place, &mut String::new());
            self.held.drain(..n_bytes);
            if outcome == Outcome::Wait && coming == Coming::More {
                return false;
            }
            tail.envelope = None;
            return true;
        }
        let [call, calls] = head::closers(self.format);
        // What models write once too often, or forgot to close inside.
        let inside = [tail.format.behind_arguments.trim(), "}", "\""];
        let [arguments, bracket, quote] = if tail.is_closed { [""; 3] } else { inside };
        let start = Scan::new(&self.held, coming);
        let mut scan = start;
        let next = [call, calls, arguments, bracket, quote];
        let found = scan.blank().and_then(|()| scan.one_of(&next));
        match found {
            Ok(idx) => {
                tail.is_closed |= [call, calls].contains(&next[idx]);
                let n_bytes = start.until(scan).len();
                self.held.drain(..n_bytes);
                true
            }
            Err(Miss::Partial) => false,
            Err(Miss::No) => {
                // The end of the answer may have cut a marker.
                let rest = self.held.trim();
                let begins = |marker: &str| marker.starts_with(rest);
                if coming != Coming::More && (begins(call) || begins(calls)) {
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
        let Some(calls) = envelope::calls(&envelope.value, &self.tools) else {
            return self.give_up_envelope(pieces);
        };
        self.held.drain(..envelope.at);
        for (tool_idx, arguments) in calls {
            let name = self.tools[tool_idx].name.clone();
            pieces.push(Piece::Call { name, id: None });
            push_arguments(arguments, pieces);
            self.end_call(self.format, Begun::Empty, pieces);
        }
        true
    }

    /// It is text; what may be a call begins behind its first character.
    fn give_up_envelope(&mut self, pieces: &mut Vec<Piece>) -> bool {
        let State::Envelope(envelope) = &self.state else { return false };
        let start = envelope.start;
        let n_first = self.held[start..].chars().next().map_or(0, char::len_utf8);
        self.state = State::Text;
        self.let_go(start + n_first, pieces);
        true
    }
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
