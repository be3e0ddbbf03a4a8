//! Converts the arguments of one call to one JSON object.
//!
//! **Invariant:** once they are complete, the output is one JSON object.

use crate::calls::format::CallFormat;
use crate::calls::head::{self, Begun, Head};
use crate::calls::json::{self, JsonReader, Progress};
use crate::calls::scan::{self, Coming, Found, Miss, Scan};
use crate::calls::tagged::{Outcome, Place, TaggedReader};

/// Reads the arguments of one call.
#[derive(Clone, Debug)]
pub(crate) enum ArgumentsReader {
    /// Plain JSON.
    Json(JsonReader),
    /// A string that contains JSON.
    Quoted(QuotedReader),
    /// Values between tags.
    Tagged(TaggedReader),
}

/// Reads JSON inside a string.
#[derive(Clone, Debug)]
pub(crate) struct QuotedReader {
    json: JsonReader,
    /// The beginning of an escape.
    held: String,
    /// Whether the content of the string is not escaped.
    is_raw: bool,
}

impl ArgumentsReader {
    /// Creates a reader for the text after this head. Returns it with the beginning of the object,
    /// or `None` if there are no arguments.
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

    /// Returns the number of settled bytes of the text, and the outcome.
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

    /// Ends the arguments where the model ended its answer. Returns whether they are complete.
    pub(crate) fn close(&mut self, rest: &str, format: &CallFormat, out: &mut String) -> bool {
        match self {
            Self::Tagged(tagged) => tagged.close(rest, format, out),
            Self::Json(json) => json.close(out),
            Self::Quoted(quoted) => quoted.json.is_done(),
        }
    }
}

/// Reads a JSON value up to its last bracket, or up to a marker outside its strings.
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

/// Checks for a marker of a call or a section at this place.
pub(crate) fn marker_here(mut scan: Scan<'_>, format: &CallFormat) -> Found<()> {
    let around = [head::closers(format), head::openers(format)];
    scan.one_of(around.as_flattened()).map(|_| ())
}

impl QuotedReader {
    /// Reads up to the closing quote. Once the JSON is complete, the quote may be missing.
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
            // The string ends before its JSON does, so its content is not escaped.
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
