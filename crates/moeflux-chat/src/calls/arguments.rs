//! The arguments of one call on their way to one JSON object.
//!
//! **Invariant:** once they are whole, all that came out is one JSON object.

use crate::calls::format::CallFormat;
use crate::calls::head::{self, Begun, Head};
use crate::calls::json::{self, JsonReader, Progress};
use crate::calls::scan::{self, Coming, Found, Miss, Scan};
use crate::calls::tagged::{Outcome, Place, TaggedReader};

/// Reads the arguments of one call.
#[derive(Clone, Debug)]
pub(crate) enum ArgumentsReader {
    /// As JSON.
    Json(JsonReader),
    /// As a string that has JSON in it.
    Quoted(QuotedReader),
    /// Between tags.
    Tagged(TaggedReader),
}

/// Reads JSON inside a string.
#[derive(Clone, Debug)]
pub(crate) struct QuotedReader {
    json: JsonReader,
    /// The beginning of an escape.
    held: String,
    /// Whether the string was written without escapes.
    is_raw: bool,
}

impl ArgumentsReader {
    /// A reader for what comes behind this head, and what the object begins with; `None` if there
    /// are no arguments.
    pub(crate) fn new(head: &Head, begun: Begun) -> Option<(Self, &'static str)> {
        let json = JsonReader::new();
        match begun {
            Begun::Empty => None,
            Begun::Object => Some((Self::Json(json), "")),
            Begun::Quoted => {
                let quoted = QuotedReader { json, held: String::new(), is_raw: false };
                Some((Self::Quoted(quoted), ""))
            }
            Begun::Tagged => Some((Self::Tagged(TaggedReader::new(head.format)?), "{")),
        }
    }

    /// How many bytes of the text are settled, and what comes next.
    pub(crate) fn step(
        &mut self,
        text: &str,
        place: &Place<'_>,
        out: &mut String,
    ) -> (usize, Outcome) {
        match self {
            Self::Tagged(tagged) => tagged.step(text, place, out),
            Self::Json(json) => json_step(json, text, place, out),
            Self::Quoted(quoted) => quoted.step(text, place.coming, out),
        }
    }

    /// The model ended its answer here: whether this makes the arguments whole.
    pub(crate) fn close(&mut self, rest: &str, format: &CallFormat, out: &mut String) -> bool {
        match self {
            Self::Tagged(tagged) => tagged.close(rest, format, out),
            Self::Json(json) => json.close(out),
            Self::Quoted(quoted) => quoted.json.is_done(),
        }
    }
}

/// A value of JSON ends with its last bracket, or before a marker outside of its strings.
pub(crate) fn json_step(
    json: &mut JsonReader,
    text: &str,
    place: &Place<'_>,
    out: &mut String,
) -> (usize, Outcome) {
    for (at, next) in text.char_indices() {
        if !json.is_in_text() {
            match ends_here(Scan::new(&text[at..], place.coming), place) {
                Ok(()) if json.close(out) => return (at, Outcome::Done),
                Ok(()) => return (at, Outcome::Broken),
                Err(Miss::Partial) => return (at, Outcome::Wait),
                Err(Miss::No) => {}
            }
        }
        match json.push(next, out) {
            Progress::More => {}
            Progress::Done => return (at + next.len_utf8(), Outcome::Done),
            Progress::Broken => return (at, Outcome::Broken),
        }
    }
    (text.len(), Outcome::Wait)
}

fn ends_here(scan: Scan<'_>, place: &Place<'_>) -> Found<()> {
    const FENCE: &str = "```";
    scan::any([marker_here(scan, place.format), { scan }.literal(FENCE)])
}

/// Whether a marker around calls stands here.
pub(crate) fn marker_here(mut scan: Scan<'_>, format: &CallFormat) -> Found<()> {
    let around = [head::closers(format), head::openers(format)];
    scan.one_of(around.as_flattened()).map(|_| ())
}

impl QuotedReader {
    /// Once the JSON is done, the quote may follow, or was forgotten.
    fn step(&mut self, text: &str, coming: Coming, out: &mut String) -> (usize, Outcome) {
        for (at, next) in text.char_indices() {
            if self.json.is_done() && self.held.is_empty() {
                match next {
                    '"' => return (at + 1, Outcome::Done),
                    '\\' if !self.is_raw => {}
                    _ if next.is_whitespace() => continue,
                    _ => return (at, Outcome::Done),
                }
            }
            if self.push(next, out) == Progress::Broken {
                return (at, Outcome::Broken);
            }
        }
        let is_over = self.json.is_done() && self.held.is_empty() && coming != Coming::More;
        (text.len(), if is_over { Outcome::Done } else { Outcome::Wait })
    }

    fn push(&mut self, next: char, out: &mut String) -> Progress {
        if self.is_raw {
            return self.json.push(next, out);
        }
        if self.held.is_empty() && next != '\\' {
            // The string ends before its JSON does: it was written without escapes.
            self.is_raw = next == '"';
            return self.json.push(next, out);
        }
        self.held.push(next);
        let Some((text, n_read)) = json::decoded(&self.held) else { return Progress::More };
        let rest = self.held.split_off(n_read);
        self.held.clear();
        for decoded in text.chars() {
            let progress = match self.json.is_done() {
                true if decoded.is_whitespace() => Progress::More,
                true => Progress::Broken,
                false => self.json.push(decoded, out),
            };
            if progress == Progress::Broken {
                return Progress::Broken;
            }
        }
        let is_read = rest.chars().all(|it| self.push(it, out) != Progress::Broken);
        if is_read { Progress::More } else { Progress::Broken }
    }
}
