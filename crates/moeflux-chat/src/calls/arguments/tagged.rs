//! Converts arguments between tags to one JSON object, while they arrive.
//!
//! A string is emitted while it is read; other values wait for their end, because only then is
//! their type known. Values may contain tags: a tag ends a value only if it is followed by
//! something that may come after a value. **Invariant:** a parameter that the schema declares as a
//! string is exactly the text between the tags, without the line break on either side that the
//! template writes.

use serde_json::Value as Json;

use crate::calls::arguments::json::{self, JsonProgress, JsonReader};
use crate::calls::arguments::schema::ValueKinds;
use crate::calls::format::{ArgumentsForm, CallFormat, Scalars, Tags};
use crate::calls::head::{self, CallBody};
use crate::calls::scan::{self, Scan, ScanError, ScanResult, StreamState};
use crate::conversation::Tool;

/// Maximum length of a key; a longer one is unrelated text.
const KEY_BYTES_MAX: usize = 256;

/// The context in which arguments are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArgumentsContext<'a> {
    /// The format of the call.
    pub(crate) format: &'static CallFormat,
    /// The offered tools.
    pub(crate) tools: &'a [Tool],
    /// The index of the called tool.
    pub(crate) tool_idx: usize,
    /// The possible continuations of the known text.
    pub(crate) stream: StreamState,
}

/// The result of a step of reading arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentsOutcome {
    /// The text after it can be read now.
    Again,
    /// More text is needed.
    Wait,
    /// The arguments are complete.
    Done,
    /// The text is invalid here.
    Broken,
}

/// Reads the arguments of one call.
#[derive(Clone, Debug)]
pub(crate) struct TaggedReader {
    tags: Tags,
    state: TaggedState,
    keys: Vec<String>,
}

/// The position of a [`TaggedReader`] in the arguments.
#[derive(Clone, Debug)]
enum TaggedState {
    Between,
    Key,
    /// After the tag, before the first character.
    ValueBegins(ValueKinds),
    Value(TaggedValue),
}

/// A value that is being read.
#[derive(Clone, Debug)]
struct TaggedValue {
    kinds: ValueKinds,
    /// Text that waits for the end; `None` once the value is known to be a string.
    waiting: Option<String>,
    /// The JSON reader of a value that can only be JSON, while it is valid.
    json: Option<JsonReader>,
    scalars: Scalars,
    is_empty: bool,
}

impl TaggedReader {
    /// Creates a reader for a call in this format, after the name; `None` if the format has no
    /// tags.
    pub(crate) fn new(format: &CallFormat) -> Option<Self> {
        let ArgumentsForm::Tagged(tags) = format.arguments else { return None };
        Some(Self { tags, state: TaggedState::Between, keys: Vec::new() })
    }

    /// Returns the number of settled bytes of the text, and the outcome.
    pub(crate) fn step(
        &mut self,
        text: &str,
        context: &ArgumentsContext<'_>,
        out: &mut String,
    ) -> (usize, ArgumentsOutcome) {
        match &mut self.state {
            TaggedState::Between => self.between(text, context, out),
            TaggedState::Key => self.key(text, context, out),
            TaggedState::ValueBegins(kinds) => {
                if text.is_empty() && context.stream == StreamState::More {
                    return (0, ArgumentsOutcome::Wait);
                }
                let kinds = *kinds;
                let is_broken = self.tags.after_key.ends_with('\n') && text.starts_with('\n');
                self.state = TaggedState::Value(TaggedValue::new(kinds, self.tags.scalars, out));
                (usize::from(is_broken), ArgumentsOutcome::Again)
            }
            TaggedState::Value(_) => self.value(text, context, out),
        }
    }

    /// Ends the arguments where the model ended its answer. Returns whether they are complete.
    pub(crate) fn close(&mut self, rest: &str, format: &CallFormat, out: &mut String) -> bool {
        match &mut self.state {
            TaggedState::Between => {}
            TaggedState::Key => return false,
            TaggedState::ValueBegins(kinds) => {
                TaggedValue::new(*kinds, self.tags.scalars, out).end(out);
            }
            TaggedState::Value(value) => {
                let rest = without_half_tag(rest, &self.tags, format);
                value.take(without_break(rest, &self.tags), out);
                value.end(out);
            }
        }
        out.push('}');
        true
    }

    fn between(
        &mut self,
        text: &str,
        context: &ArgumentsContext<'_>,
        out: &mut String,
    ) -> (usize, ArgumentsOutcome) {
        let start = Scan::new(text, context.stream);
        let mut scan = start;
        let own = [self.tags.before_key, context.format.after_arguments].map(str::trim);
        let next = [&own[..], &around(context.format)].concat();
        match scan.blank().and_then(|()| scan.one_of(&next)) {
            Ok(0) => {
                self.state = TaggedState::Key;
                (start.until(scan).len(), ArgumentsOutcome::Again)
            }
            Ok(idx) => {
                out.push('}');
                let is_own = idx < own.len();
                (if is_own { start.until(scan).len() } else { 0 }, ArgumentsOutcome::Done)
            }
            Err(ScanError::Mismatch) if !text.trim().is_empty() => (0, ArgumentsOutcome::Broken),
            Err(_) => (0, ArgumentsOutcome::Wait),
        }
    }

    /// Reads a key up to its tag or, if that is missing, up to the end of its line.
    fn key(
        &mut self,
        text: &str,
        context: &ArgumentsContext<'_>,
        out: &mut String,
    ) -> (usize, ArgumentsOutcome) {
        let (first, second) = key_ends(&self.tags);
        let ends = [&first[..], &[second, "\n"]].concat();
        let ends = ends.iter().filter(|it| !it.is_empty());
        let found = ends.filter_map(|end| Some((text.find(end)?, *end))).min();
        let Some((n_bytes, end)) = found.filter(|(n_bytes, _)| *n_bytes <= KEY_BYTES_MAX) else {
            let is_long = text.len() > KEY_BYTES_MAX + first[0].len();
            return (0, if is_long { ArgumentsOutcome::Broken } else { ArgumentsOutcome::Wait });
        };
        let n_read = n_bytes + if end == "\n" { 0 } else { end.len() };
        let mut scan = Scan::new(&text[n_read..], context.stream);
        if !second.is_empty() && end != second {
            let start = scan;
            match scan.blank().and_then(|()| scan.literal(second)) {
                Ok(()) => {}
                Err(ScanError::Incomplete) => return (0, ArgumentsOutcome::Wait),
                Err(ScanError::Mismatch) => scan = start,
            }
        }
        let key = text[..n_bytes].trim();
        // For a duplicate key, parsers disagree on the value.
        if key.is_empty() || self.keys.iter().any(|it| it == key) {
            return (0, ArgumentsOutcome::Broken);
        }
        out.push_str(if self.keys.is_empty() { "" } else { ", " });
        json::push_text(key, out);
        out.push_str(": ");
        let kinds = ValueKinds::of_parameter(&context.tools[context.tool_idx].parameters, key);
        let kinds = self.tags.kinds_after(end, kinds);
        self.keys.push(key.to_owned());
        self.state = TaggedState::ValueBegins(kinds);
        let start = Scan::new(text, context.stream);
        (start.until(scan).len(), ArgumentsOutcome::Again)
    }

    fn value(
        &mut self,
        text: &str,
        context: &ArgumentsContext<'_>,
        out: &mut String,
    ) -> (usize, ArgumentsOutcome) {
        let TaggedState::Value(value) = &mut self.state else {
            return (0, ArgumentsOutcome::Broken);
        };
        let mut n_settled = text.len();
        let (mut json, mut n_read) = (value.json.clone(), 0);
        for (at, _) in text.match_indices('<') {
            let is_line_start = if at == 0 { value.is_empty } else { text[..at].ends_with('\n') };
            read_on(&mut json, &text[n_read..at]);
            n_read = at;
            // JSON strings contain no line breaks, so after one the tag is real.
            let has_break = self.tags.after_value.starts_with('\n');
            let is_in_text = json.as_ref().is_some_and(JsonReader::is_in_text);
            if is_in_text && has_break && !is_line_start {
                continue;
            }
            let rest = Scan::new(&text[at..], context.stream);
            match value_ends(rest, &self.tags, &self.keys, context, is_line_start) {
                Ok(n_bytes) => {
                    value.take(without_break(&text[..at], &self.tags), out);
                    value.end(out);
                    self.state = TaggedState::Between;
                    return (at + n_bytes, ArgumentsOutcome::Again);
                }
                Err(ScanError::Incomplete) => {
                    n_settled = at;
                    break;
                }
                Err(ScanError::Mismatch) => {}
            }
        }
        if context.stream == StreamState::End {
            n_settled = n_settled.min(without_half_tag(text, &self.tags, context.format).len());
        }
        let settled = without_break(&text[..n_settled], &self.tags);
        value.take(settled, out);
        (settled.len(), ArgumentsOutcome::Wait)
    }
}

impl Tags {
    /// Returns the kinds of a value after this text behind its key, if these are declared. What is
    /// declared counts more than the text.
    pub(crate) fn kinds_after(&self, after_key: &str, declared: ValueKinds) -> ValueKinds {
        match after_key {
            _ if !self.mark_strings() => declared,
            it if it == self.after_key => declared.narrowed(true),
            it if it == self.after_json_key => declared.narrowed(false),
            _ => declared,
        }
    }

    /// Returns the texts behind a key that may introduce a value of these kinds, each with the
    /// kinds of values after it.
    pub(crate) fn after_keys(&self, kinds: ValueKinds) -> Vec<(&'static str, ValueKinds)> {
        if !self.mark_strings() {
            return vec![(self.after_key, kinds)];
        }
        let text = kinds.has_text().then(|| (self.after_key, kinds.narrowed(true)));
        let json = (!kinds.is_text()).then(|| (self.after_json_key, kinds.narrowed(false)));
        text.into_iter().chain(json).collect()
    }
}

/// Returns the markers that show the end of the arguments but do not belong to them.
fn around(format: &CallFormat) -> [&'static str; 5] {
    let [call, calls] = head::closers(format);
    let [section, opener] = head::openers(format);
    let prefix = format.before_name.trim();
    [call, calls, section, opener, if prefix.starts_with('<') { prefix } else { "" }]
}

/// Returns the markers of which one ends a key, and the marker between that and the value, which is
/// empty if there is none. An attribute after the key may be missing.
fn key_ends(tags: &Tags) -> ([&'static str; 3], &'static str) {
    let end = tags.after_key.find('>').map_or(tags.after_key.len(), |at| at + 1);
    let first = tags.after_key[..end].trim();
    if !tags.mark_strings() {
        return ([first, "", ""], tags.after_key[end..].trim());
    }
    let bare = first.rfind('"').map_or(first, |at| &first[at..]);
    ([first, tags.after_json_key.trim(), bare], "")
}

fn without_break<'a>(text: &'a str, tags: &Tags) -> &'a str {
    let is_written = tags.after_value.starts_with('\n');
    text.strip_suffix('\n').filter(|_| is_written).unwrap_or(text)
}

/// Removes an unfinished closing tag from the end of the answer.
fn without_half_tag<'a>(text: &'a str, tags: &Tags, format: &CallFormat) -> &'a str {
    let [call, calls] = head::closers(format);
    let ends = [tags.after_value.trim(), format.after_arguments.trim(), call, calls];
    let half = text.rfind('<').map_or("", |at| &text[at..]);
    // A single bracket may be anything.
    let is_half = half.len() > 1 && ends.iter().any(|end| end.starts_with(half));
    if is_half { &text[..text.len() - half.len()] } else { text }
}

/// Feeds text to the reader of a value that can only be JSON; drops the reader if the text is
/// invalid.
fn read_on(json: &mut Option<JsonReader>, text: &str) {
    let mut out = String::new();
    let mut is_read = |json: &mut JsonReader| {
        text.chars().all(|next| json.push(next, &mut out) != JsonProgress::Broken)
    };
    if json.as_mut().is_some_and(|it| !is_read(it)) {
        *json = None;
    }
}

/// Checks whether a value ends here. Returns the number of the following bytes that belong to it.
fn value_ends(
    start: Scan<'_>,
    tags: &Tags,
    keys: &[String],
    context: &ArgumentsContext<'_>,
    is_line_start: bool,
) -> ScanResult<usize> {
    let ArgumentsContext { format, tools, tool_idx, stream: _ } = *context;
    let [close, next] = [tags.after_value, tags.before_key].map(str::trim);
    let end = format.after_arguments.trim();
    let [call, calls, section, opener, prefix] = around(format);
    let after = |marker: &str, followers: &[&str]| {
        let mut scan = start;
        if marker.is_empty() {
            return Err(ScanError::Mismatch);
        }
        scan.literal(marker)?;
        let end_of_marker = scan;
        scan.ends_with(followers)?;
        Ok(start.until(end_of_marker).len())
    };
    // Without its own closing tag, a value ends before the tag that should follow it.
    let missing = |found: ScanResult<usize>| found.map(|_| 0);
    let next_parameter = || {
        let is_allowed = is_line_start || !tags.after_value.starts_with('\n');
        let mut scan = start;
        scan.literal(next)?;
        let declared = tools[tool_idx].parameters.get("properties").and_then(Json::as_object);
        let declared = declared.into_iter().flat_map(|it| it.keys());
        let new = declared.filter(|key| is_allowed && !keys.contains(*key));
        scan::any(new.map(|key| {
            let mut scan = scan;
            scan.literal(key)?;
            scan.one_of(&key_ends(tags).0).map(|_| 0)
        }))
    };
    let next_call = || {
        { start }.one_of(&[section, opener])?;
        match head::find(format, tools, start, false)?.body {
            CallBody::Arguments(..) => Ok(0),
            CallBody::Envelope { .. } => Err(ScanError::Mismatch),
        }
    };
    scan::any([
        after(close, &[next, end, call, calls, section, opener, prefix]),
        missing(after(end, &[call, calls, section, opener, prefix])),
        missing(after(call, &[calls, section, opener])),
        next_parameter(),
        next_call(),
    ])
}

impl TaggedValue {
    fn new(kinds: ValueKinds, scalars: Scalars, out: &mut String) -> Self {
        let waiting = if kinds.is_text() { None } else { Some(String::new()) };
        if waiting.is_none() {
            out.push('"');
        }
        let json = (!kinds.has_text()).then(JsonReader::new);
        Self { kinds, waiting, json, scalars, is_empty: true }
    }

    fn take(&mut self, text: &str, out: &mut String) {
        self.is_empty &= text.is_empty();
        let Some(waiting) = &mut self.waiting else {
            return text.chars().for_each(|it| json::push_escaped(it, out));
        };
        waiting.push_str(text);
        read_on(&mut self.json, text);
        // A string or null; a few characters decide.
        let nulls = nulls(self.scalars);
        if self.kinds.is_text_or_null() && !nulls.iter().any(|it| it.starts_with(&*waiting)) {
            out.push('"');
            waiting.chars().for_each(|it| json::push_escaped(it, out));
            self.waiting = None;
        }
    }

    fn end(&mut self, out: &mut String) {
        match self.waiting.take() {
            None => out.push('"'),
            Some(text) => push_value(&text, (self.kinds, self.scalars), out),
        }
    }
}

/// Returns the spellings of null where a string is allowed. Models that learned Python's name write
/// JSON's as well; the others have no reason to write Python's.
fn nulls(scalars: Scalars) -> &'static [&'static str] {
    match scalars {
        Scalars::Json => &["null"],
        Scalars::Python => &["None", "null"],
    }
}

/// Appends the value of a text where these kinds are allowed; a string if it has no other meaning.
fn push_value(text: &str, (kinds, scalars): (ValueKinds, Scalars), out: &mut String) {
    let trimmed = text.trim();
    let value = if kinds.is_text_or_null() {
        nulls(scalars).contains(&text).then(|| "null".to_owned())
    } else if kinds.has_text() {
        // Any deviation from what templates write is a string here.
        let written = match (scalars, trimmed) {
            (Scalars::Python, "True") => "true",
            (Scalars::Python, "False") => "false",
            (Scalars::Python, "None") => "null",
            _ => trimmed,
        };
        let value: Option<Json> = serde_json::from_str(written).ok();
        let value = value.filter(|it| !it.is_string() && kinds.has_kind_of(it));
        // This also limits the depth for other parsers.
        value.and_then(|_| repaired(written))
    } else if trimmed.is_empty() {
        kinds.has_kind_of(&Json::Null).then(|| "null".to_owned())
    } else {
        repaired(trimmed)
    };
    match value {
        Some(value) => out.push_str(&value),
        None => json::push_text(text, out),
    }
}

/// Parses and repairs a value that is not a string.
fn repaired(text: &str) -> Option<String> {
    let (mut reader, mut value) = (JsonReader::new(), String::new());
    let is_read = text.chars().all(|next| reader.push(next, &mut value) != JsonProgress::Broken);
    (is_read && reader.close(&mut value)).then_some(value)
}
