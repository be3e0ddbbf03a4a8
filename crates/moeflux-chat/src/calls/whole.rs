//! Finds a call in an answer that consists of a single JSON object, bare or fenced.
//!
//! Models write this if their template shows tools but they were trained on another kind of calls;
//! all Qwen2.5-Coder models do. **Invariant:** held text may still become a call, and is bounded;
//! any other text in the answer makes all of it text. Independent of markers.

use crate::calls::envelope;
use crate::calls::json::{JsonReader, Progress};
use crate::calls::scan::{Coming, Found, Miss, Scan};
use crate::calls::schema;
use crate::conversation::Tool;

/// Maximum length of held text, above the longest file that a model writes in one call; a longer
/// answer is text.
const HELD_BYTES_MAX: usize = 256 << 10;

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
        coming: Coming,
    ) -> Found<(usize, String)> {
        if answer.len() > HELD_BYTES_MAX || coming == Coming::Cut {
            return Err(Miss::No);
        }
        let object = match &mut self.object {
            Some(object) => object,
            None => self.object.insert(begin(Scan::new(answer, coming))?),
        };
        let rest = object.json_at(answer)?;
        let mut scan = Scan::new(rest, coming);
        if object.is_fenced {
            scan.ends_with(&[FENCE])?;
        }
        scan.blank()?;
        if coming == Coming::More {
            return if scan.is_at_end() { Err(Miss::Partial) } else { Err(Miss::No) };
        }
        if !scan.is_at_end() {
            return Err(Miss::No);
        }
        let calls = envelope::calls(&object.value, tools).ok_or(Miss::No)?;
        let [(tool_idx, arguments)] = <[_; 1]>::try_from(calls).map_err(|_| Miss::No)?;
        let fits = schema::fits(&tools[tool_idx].parameters, &arguments);
        if fits { Ok((tool_idx, arguments)) } else { Err(Miss::No) }
    }
}

/// Takes the start of an object.
fn begin(start: Scan<'_>) -> Found<Object> {
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
    scan.one_of(&FIRST_KEYS)?;
    Ok(Object { is_fenced, json: JsonReader::new(), at: n_before, value: String::new() })
}

impl Object {
    /// Returns the text after the object.
    fn json_at<'a>(&mut self, answer: &'a str) -> Found<&'a str> {
        let Self { json, at, value, .. } = self;
        for next in answer[*at..].chars() {
            if json.is_done() {
                break;
            }
            if json.push(next, value) == Progress::Broken {
                return Err(Miss::No);
            }
            *at += next.len_utf8();
        }
        if json.is_done() { Ok(&answer[*at..]) } else { Err(Miss::Partial) }
    }
}
