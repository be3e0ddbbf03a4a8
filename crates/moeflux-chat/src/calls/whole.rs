//! Finds a call in an answer that consists of a single JSON object, bare or fenced.
//!
//! Models write this if their template shows tools but they were trained on another kind of calls;
//! all Qwen2.5-Coder models do. **Invariant:** buffered text may still become a call, and is
//! bounded; any other text in the answer makes all of it text. This module is independent of
//! markers.

use crate::calls::arguments::json::{JsonProgress, JsonReader};
use crate::calls::arguments::schema;
use crate::calls::envelope;
use crate::calls::head;
use crate::calls::scan::{Scan, ScanError, ScanResult, StreamState};
use crate::conversation::Tool;

/// Maximum length of buffered text, above the longest file that a model writes in one call; a
/// longer answer is text.
const BUFFER_BYTES_MAX: usize = 256 << 10;

/// Possible first keys of a call.
const FIRST_KEYS: [&str; 5] =
    ["\"name\"", "\"arguments\"", "\"parameters\"", "\"function\"", "\"type\""];

const FENCE: &str = "```";

/// The answer so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct WholeReader {
    object: Option<Object>,
}

/// The object in the answer.
#[derive(Clone, Debug)]
struct Object {
    is_fenced: bool,
    json: JsonReader,
    /// The offset up to which the answer is read.
    at: usize,
    value: String,
}

impl WholeReader {
    /// Reads on in an answer, which is passed in full. Once it has ended and is a call, returns the
    /// index of the tool and the arguments.
    pub(crate) fn read(
        &mut self,
        answer: &str,
        tools: &[Tool],
        stream: StreamState,
    ) -> ScanResult<(usize, String)> {
        if answer.len() > BUFFER_BYTES_MAX || stream == StreamState::Cut {
            return Err(ScanError::Mismatch);
        }
        let object = match &mut self.object {
            Some(object) => object,
            None => self.object.insert(begin(Scan::new(answer, stream), tools)?),
        };
        let rest = object.json_at(answer)?;
        let mut scan = Scan::new(rest, stream);
        if object.is_fenced {
            scan.ends_with(&[FENCE])?;
        }
        scan.blank()?;
        if stream == StreamState::More {
            return if scan.is_at_end() {
                Err(ScanError::Incomplete)
            } else {
                Err(ScanError::Mismatch)
            };
        }
        if !scan.is_at_end() {
            return Err(ScanError::Mismatch);
        }
        let calls = envelope::calls(&object.value, tools).ok_or(ScanError::Mismatch)?;
        let [(tool_idx, arguments)] = <[_; 1]>::try_from(calls).map_err(|_| ScanError::Mismatch)?;
        let fits = schema::fits(&tools[tool_idx].parameters, &arguments);
        if fits { Ok((tool_idx, arguments)) } else { Err(ScanError::Mismatch) }
    }
}

/// Takes the start of an object. If it begins with a name, this is the name of a tool.
fn begin(start: Scan<'_>, tools: &[Tool]) -> ScanResult<Object> {
    let mut scan = start;
    scan.blank()?;
    let is_fenced = scan.may_take(FENCE)?;
    if is_fenced {
        scan.may_take("json")?;
        scan.blank()?;
    }
    let n_before = start.until(scan).len();
    scan.literal("{")?;
    scan.blank()?;
    if scan.one_of(&FIRST_KEYS)? == 0 {
        scan.blank()?;
        scan.literal(":")?;
        scan.blank()?;
        scan.literal("\"")?;
        head::named(tools, scan)?;
    }
    Ok(Object { is_fenced, json: JsonReader::new(), at: n_before, value: String::new() })
}

impl Object {
    /// Returns the text after the object.
    fn json_at<'a>(&mut self, answer: &'a str) -> ScanResult<&'a str> {
        let Self { json, at, value, .. } = self;
        for next in answer[*at..].chars() {
            if json.is_done() {
                break;
            }
            if json.push(next, value) == JsonProgress::Broken {
                return Err(ScanError::Mismatch);
            }
            *at += next.len_utf8();
        }
        if json.is_done() { Ok(&answer[*at..]) } else { Err(ScanError::Incomplete) }
    }
}
