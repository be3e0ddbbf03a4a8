//! Separates thoughts, texts and calls of an answer in harmony, while it arrives.
//!
//! A message in the channel `analysis` is a thought, one to an offered tool is a call, and any
//! other is text. Consecutive thoughts or texts are separated by an empty line. A marker that does
//! not begin a header is dropped and the message continues; only the arguments of a call keep it.
//! **Invariant:** the result does not depend on how the text is split into chunks; no text is
//! emitted before its channel is known.

use std::sync::Arc;

use crate::calls::format::HARMONY;
use crate::calls::reader::CallReader;
use crate::calls::scan::{Coming, Miss};
use crate::channels::header::{
    self, CALL, CHANNEL, CONSTRAIN, END, Header, RETURN, START, Says, Spot,
};
use crate::conversation::Tool;
use crate::piece::{Piece, Stage};
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
    state: State,
    /// Text that is not settled yet.
    held: String,
    /// Whether any text, and any thought, was emitted.
    has_said: Said,
    /// Whether nothing of this message was emitted yet.
    is_new: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Said {
    text: bool,
    thought: bool,
}

#[derive(Clone, Debug)]
enum State {
    /// Before the first header.
    Start,
    In(Message),
    /// The held text begins with a marker that ends this message if a header follows.
    Break(Message),
}

#[derive(Clone, Debug)]
enum Message {
    Plain(Says),
    Call(Box<CallMessage>),
}

/// A message to a tool.
#[derive(Clone, Debug)]
struct CallMessage {
    reader: CallReader,
    /// The kind of the message if it turns out not to be a call.
    otherwise: Says,
    /// Its whole text, until the call begins.
    body: String,
    has_begun: bool,
    /// Whether the call has ended, complete or cut.
    is_over: bool,
}

impl ChannelReader {
    /// Creates a reader of an answer that begins with a header, or within a message.
    pub(crate) fn new(within: Option<Says>) -> Self {
        let state = within.map_or(State::Start, |says| State::In(Message::Plain(says)));
        let (held, has_said) = (String::new(), Said::default());
        Self { tools: Arc::new([]), n_calls_left: usize::MAX, state, held, has_said, is_new: true }
    }

    /// Also reads calls of these tools.
    pub(crate) fn with_calls(self, tools: &[Tool]) -> Self {
        Self { tools: tools.into(), ..self }
    }

    /// Limits the answer to `n_calls_max` calls.
    pub(crate) fn with_calls_max(self, n_calls_max: usize) -> Self {
        Self { n_calls_left: n_calls_max, ..self }
    }

    pub(crate) fn stage(&self) -> Stage {
        match &self.state {
            State::Start if !self.held.contains("|>") => Stage::Start,
            State::Start | State::Break(_) => Stage::Header,
            State::In(Message::Call(_)) => Stage::Call,
            State::In(Message::Plain(Says::Thought)) => Stage::Thought,
            State::In(Message::Plain(Says::Text)) => Stage::Text,
            State::In(Message::Plain(Says::NotOurs)) => Stage::Header,
        }
    }

    /// Takes text and appends the pieces that became certain.
    pub(crate) fn push(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        self.held.push_str(text);
        while self.step(pieces) {}
    }

    /// Ends the answer and appends the remaining pieces.
    pub(crate) fn finish(&mut self, coming: Coming, pieces: &mut Vec<Piece>) {
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Start) {
            State::In(Message::Plain(says)) => self.say(says, &held, pieces),
            // Half a header has no content; without a marker it is not a header.
            State::Start if !held.contains("|>") => self.say(Says::Text, &held, pieces),
            State::In(Message::Call(mut call)) => {
                if call.push(&held, pieces) {
                    self.end_call(*call, coming, pieces);
                } else {
                    self.say(call.otherwise, &call.body, pieces);
                }
            }
            State::Break(Message::Call(call)) => {
                let is_ended = [END, RETURN].iter().any(|it| held.starts_with(it));
                self.end_call(*call, if is_ended { Coming::End } else { coming }, pieces);
            }
            State::Break(Message::Plain(says)) if coming == Coming::End => {
                // The message mentions a marker. After the end of a message, the marker began
                // another one.
                let is_ended = [END, RETURN, CALL].iter().any(|it| held.starts_with(it));
                let text = held.replace(START, "").replace(CHANNEL, "").replace(CONSTRAIN, "");
                self.say(says, if is_ended { "" } else { &text }, pieces);
            }
            State::Start | State::Break(Message::Plain(_)) => {}
        }
    }

    /// Settles the beginning of the held text. Returns whether there may be more to settle.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match std::mem::replace(&mut self.state, State::Start) {
            State::Start => self.start(),
            State::In(Message::Plain(says)) => self.plain(says, pieces),
            State::In(Message::Call(call)) => self.call(call, pieces),
            State::Break(message) => self.at_break(message, pieces),
        }
    }

    fn start(&mut self) -> bool {
        match header::find(&self.held, Spot::Start) {
            Ok(header) => self.begin(&header, 0),
            Err(Miss::Partial) => return false,
            Err(Miss::No) => {
                let n_blank = self.held.len() - self.held.trim_start().len();
                if let Some((0, marker)) = first_of(&self.held[n_blank..], &HARMONY_MARKERS) {
                    self.held.drain(..n_blank + marker.len());
                }
                self.state = State::In(Message::Plain(Says::Text));
            }
        }
        true
    }

    fn plain(&mut self, says: Says, pieces: &mut Vec<Piece>) -> bool {
        let (n_settled, marker) = self.next_marker();
        let text: String = self.held.drain(..n_settled).collect();
        self.say(says, &text, pieces);
        let message = Message::Plain(says);
        match marker {
            None => {
                self.state = State::In(message);
                return false;
            }
            Some(marker) if BREAKS.contains(&marker) => self.state = State::Break(message),
            Some(marker) => {
                self.held.drain(..marker.len());
                self.state = State::In(message);
            }
        }
        true
    }

    /// Arguments may mention markers, so until they are complete, only the end of a message ends
    /// them.
    fn call(&mut self, mut call: Box<CallMessage>, pieces: &mut Vec<Piece>) -> bool {
        let (n_settled, marker) = self.next_marker();
        let text: String = self.held.drain(..n_settled).collect();
        if !self.push_call(&mut call, &text, pieces) {
            return true;
        }
        let Some(marker) = marker else {
            self.state = State::In(Message::Call(call));
            return false;
        };
        let breaks: &[&str] = if call.is_over { &BREAKS } else { &[END, RETURN] };
        if breaks.contains(&marker) {
            self.state = State::Break(Message::Call(call));
        } else {
            self.pass_marker(call, marker.len(), pieces);
        }
        true
    }

    /// Passes a marker at the start of the held text that does not act as one here.
    fn pass_marker(&mut self, mut call: Box<CallMessage>, n_bytes: usize, pieces: &mut Vec<Piece>) {
        let marker: String = self.held.drain(..n_bytes).collect();
        if call.is_over || self.push_call(&mut call, &marker, pieces) {
            self.state = State::In(Message::Call(call));
        }
    }

    /// Returns the number of bytes before the next marker, and that marker if it is complete.
    fn next_marker(&self) -> (usize, Option<&'static str>) {
        match first_of(&self.held, &HARMONY_MARKERS) {
            Some((at, marker)) => (at, Some(marker)),
            None => (self.held.len() - header::n_unfinished(&self.held), None),
        }
    }

    /// Takes text. Returns whether the message still may be a call; otherwise its text is read
    /// again.
    fn push_call(&mut self, call: &mut CallMessage, text: &str, pieces: &mut Vec<Piece>) -> bool {
        let is_call = call.push(text, pieces);
        if !is_call {
            self.n_calls_left += 1;
            self.held.insert_str(0, &call.body);
            self.state = State::In(Message::Plain(call.otherwise));
        }
        is_call
    }

    fn at_break(&mut self, message: Message, pieces: &mut Vec<Piece>) -> bool {
        let ends = [END, RETURN, CALL];
        let n_end = ends.iter().find(|it| self.held.starts_with(**it)).map_or(0, |it| it.len());
        let spot = if n_end > 0 { Spot::Behind } else { Spot::Within };
        match header::find(&self.held[n_end..], spot) {
            Ok(header) => {
                if let Message::Call(call) = message {
                    self.end_call(*call, Coming::End, pieces);
                }
                self.begin(&header, n_end);
            }
            Err(Miss::Partial) => {
                self.state = State::Break(message);
                return false;
            }
            Err(Miss::No) => {
                let marker = BREAKS.iter().find(|it| self.held.starts_with(**it));
                let n_bytes = marker.expect("what is held begins with a marker").len();
                match message {
                    Message::Plain(says) => {
                        self.held.drain(..n_bytes);
                        self.state = State::In(Message::Plain(says));
                    }
                    Message::Call(call) => self.pass_marker(call, n_bytes, pieces),
                }
            }
        }
        true
    }

    fn begin(&mut self, header: &Header, n_before: usize) {
        self.held.drain(..n_before + header.n_bytes);
        self.is_new = true;
        let tool = header.recipient.as_deref().and_then(|it| self.tool(it));
        let message = match tool.filter(|_| self.n_calls_left > 0) {
            Some(tool) => Message::Call(Box::new(CallMessage::new(tool, header.says))),
            None => Message::Plain(header.says),
        };
        self.n_calls_left -= usize::from(matches!(message, Message::Call(_)));
        self.state = State::In(message);
    }

    fn tool(&self, recipient: &str) -> Option<&Tool> {
        let bare = recipient.strip_prefix(HARMONY.before_name).unwrap_or(recipient);
        self.tools.iter().find(|it| !it.name.is_empty() && it.name == bare)
    }

    fn end_call(&mut self, mut call: CallMessage, coming: Coming, pieces: &mut Vec<Piece>) {
        if !call.finish(coming, pieces) {
            self.n_calls_left += 1;
            self.say(call.otherwise, &call.body, pieces);
        }
    }

    fn say(&mut self, says: Says, text: &str, pieces: &mut Vec<Piece>) {
        let has_said = match says {
            Says::Thought => &mut self.has_said.thought,
            Says::Text => &mut self.has_said.text,
            Says::NotOurs => return,
        };
        if text.is_empty() {
            return;
        }
        let is_apart = std::mem::replace(has_said, true) && std::mem::take(&mut self.is_new);
        self.is_new = false;
        let text = format!("{}{text}", if is_apart { BETWEEN } else { "" });
        match (pieces.last_mut(), says) {
            (Some(Piece::Thought(last)), Says::Thought) | (Some(Piece::Text(last)), Says::Text) => {
                last.push_str(&text);
            }
            (_, Says::Thought) => pieces.push(Piece::Thought(text)),
            _ => pieces.push(Piece::Text(text)),
        }
    }
}

impl CallMessage {
    fn new(tool: &Tool, otherwise: Says) -> Self {
        let tools = std::slice::from_ref(tool);
        let mut reader = CallReader::new(&HARMONY, tools).with_calls_max(1);
        let head = [HARMONY.before_call, HARMONY.before_name, &tool.name, HARMONY.behind_name];
        reader.push(&head.concat(), &mut Vec::new());
        Self { reader, otherwise, body: String::new(), has_begun: false, is_over: false }
    }

    /// Takes text. Returns whether the message still may be a call.
    fn push(&mut self, text: &str, pieces: &mut Vec<Piece>) -> bool {
        if !self.has_begun {
            self.body.push_str(text);
        }
        let mut new = Vec::new();
        self.reader.push(text, &mut new);
        self.take(new, pieces)
    }

    /// Ends the message or the answer. An empty message is a call without arguments.
    fn finish(&mut self, coming: Coming, pieces: &mut Vec<Piece>) -> bool {
        let mut new = Vec::new();
        if !self.has_begun && coming == Coming::End {
            self.reader.push(CALL, &mut new);
        }
        self.reader.finish(coming, &mut new);
        self.take(new, pieces)
    }

    fn take(&mut self, new: Vec<Piece>, pieces: &mut Vec<Piece>) -> bool {
        if !self.has_begun {
            match new.first() {
                None => return true,
                Some(Piece::Call { .. }) => self.has_begun = true,
                Some(_) => return false,
            }
        }
        self.is_over |= new.iter().any(|it| matches!(it, Piece::CallEnd | Piece::CallCut));
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
