//! Converts the arguments of one call to one JSON object.
//!
//! **Invariant:** once they are complete, the output is one JSON object.

pub(crate) mod json;
pub(crate) mod schema;
pub(crate) mod tagged;

use crate::calls::arguments::json::{JsonProgress, JsonReader};
use crate::calls::arguments::tagged::{ArgumentsContext, ArgumentsOutcome, TaggedReader};
use crate::calls::format::CallFormat;
use crate::calls::head::{self, ArgumentsStart, CallHead};
use crate::calls::scan::{self, Scan, ScanError, ScanResult, StreamState};

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
    buffer: String,
    /// Whether the content of the string is not escaped.
    is_raw: bool,
}

impl ArgumentsReader {
    /// Creates a reader for the text after this head. Returns it with the beginning of the object,
    /// or `None` if there are no arguments.
    pub(crate) fn new(
        head: &CallHead,
        arguments_start: ArgumentsStart,
    ) -> Option<(Self, &'static str)> {
        let json = JsonReader::new();
        match arguments_start {
            ArgumentsStart::Empty => None,
            ArgumentsStart::Object => Some((Self::Json(json), "")),
            ArgumentsStart::Quoted => {
                let quoted = QuotedReader { json, buffer: String::new(), is_raw: false };
                Some((Self::Quoted(quoted), ""))
            }
            ArgumentsStart::Tagged => Some((Self::Tagged(TaggedReader::new(head.format)?), "{")),
        }
    }

    /// Returns the number of settled bytes of the text, and the outcome.
    pub(crate) fn step(
        &mut self,
        text: &str,
        context: &ArgumentsContext<'_>,
        out: &mut String,
    ) -> (usize, ArgumentsOutcome) {
        match self {
            Self::Tagged(tagged) => tagged.step(text, context, out),
            Self::Json(json) => json_step(json, text, context, out),
            Self::Quoted(quoted) => quoted.step(text, context.stream, out),
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
    context: &ArgumentsContext<'_>,
    out: &mut String,
) -> (usize, ArgumentsOutcome) {
    for (at, next) in text.char_indices() {
        if !json.is_in_text() {
            match ends_here(Scan::new(&text[at..], context.stream), context) {
                Ok(()) if json.close(out) => return (at, ArgumentsOutcome::Done),
                Ok(()) => return (at, ArgumentsOutcome::Broken),
                Err(ScanError::Incomplete) => return (at, ArgumentsOutcome::Wait),
                Err(ScanError::Mismatch) => {}
            }
        }
        match json.push(next, out) {
            JsonProgress::More => {}
            JsonProgress::Done => return (at + next.len_utf8(), ArgumentsOutcome::Done),
            JsonProgress::Broken => return (at, ArgumentsOutcome::Broken),
        }
    }
    (text.len(), ArgumentsOutcome::Wait)
}

fn ends_here(scan: Scan<'_>, context: &ArgumentsContext<'_>) -> ScanResult<()> {
    const FENCE: &str = "```";
    scan::any([marker_here(scan, context.format), { scan }.literal(FENCE)])
}

/// Checks for a marker of a call or a section at this place.
pub(crate) fn marker_here(mut scan: Scan<'_>, format: &CallFormat) -> ScanResult<()> {
    let around = [head::closers(format), head::openers(format)];
    scan.one_of(around.as_flattened()).map(|_| ())
}

impl QuotedReader {
    /// Reads up to the closing quote. Once the JSON is complete, the quote may be missing.
    fn step(
        &mut self,
        text: &str,
        stream: StreamState,
        out: &mut String,
    ) -> (usize, ArgumentsOutcome) {
        for (at, next) in text.char_indices() {
            if self.json.is_done() && self.buffer.is_empty() {
                match next {
                    '"' => return (at + 1, ArgumentsOutcome::Done),
                    '\\' if !self.is_raw => {}
                    _ if next.is_whitespace() => continue,
                    _ => return (at, ArgumentsOutcome::Done),
                }
            }
            if self.push(next, out) == JsonProgress::Broken {
                return (at, ArgumentsOutcome::Broken);
            }
        }
        let is_over = self.json.is_done() && self.buffer.is_empty() && stream != StreamState::More;
        (text.len(), if is_over { ArgumentsOutcome::Done } else { ArgumentsOutcome::Wait })
    }

    fn push(&mut self, next: char, out: &mut String) -> JsonProgress {
        if self.is_raw {
            return self.json.push(next, out);
        }
        if self.buffer.is_empty() && next != '\\' {
            // The string ends before its JSON does, so its content is not escaped.
            self.is_raw = next == '"';
            return self.json.push(next, out);
        }
        self.buffer.push(next);
        let Some((text, n_read)) = json::decoded(&self.buffer) else { return JsonProgress::More };
        let rest = self.buffer.split_off(n_read);
        self.buffer.clear();
        for decoded in text.chars() {
            let progress = match self.json.is_done() {
                true if decoded.is_whitespace() => JsonProgress::More,
                true => JsonProgress::Broken,
                false => self.json.push(decoded, out),
            };
            if progress == JsonProgress::Broken {
                return JsonProgress::Broken;
            }
        }
        let is_read = rest.chars().all(|it| self.push(it, out) != JsonProgress::Broken);
        if is_read { JsonProgress::More } else { JsonProgress::Broken }
    }
}
