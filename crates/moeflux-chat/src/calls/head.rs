//! Finds the beginning of a call in a text, from its opening marker to its arguments.
//!
//! Opening markers may be missing or repeated. Formats with the same opening marker are
//! distinguished by the text after it. **Invariant:** only names of offered tools begin a call, and
//! no call begins before it is certain that arguments follow.

use crate::calls::format::{self, ArgumentsForm, CallFormat, NameForm};
use crate::calls::scan::{self, Scan, ScanError, ScanResult};
use crate::conversation::Tool;

/// Maximum number of opening markers in a row; more are text.
const OPENERS_MAX: usize = 4;

/// Maximum number of digits after a name, as many as 64-bit numbers have; more are text.
const DIGITS_MAX: usize = 20;

/// The beginning of a call.
#[derive(Clone, Debug)]
pub(crate) struct CallHead {
    /// The format of the rest.
    pub(crate) format: &'static CallFormat,
    /// Its length in bytes.
    pub(crate) n_bytes: usize,
    /// The text that follows it.
    pub(crate) body: CallBody,
}

/// The text that follows the beginning of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CallBody {
    /// The arguments of this call.
    Arguments(CalledTool, ArgumentsStart),
    /// JSON that has the name and the arguments in an unusual order, or contains several calls.
    Envelope {
        /// Whether an opening marker came before.
        is_marked: bool,
    },
}

/// The tool that is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CalledTool {
    /// The index of the tool among those offered.
    pub(crate) tool_idx: usize,
    /// The model's own id for the call.
    pub(crate) id: Option<String>,
}

/// The beginning of the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentsStart {
    /// With the bracket of an object.
    Object,
    /// Inside a string that contains the object, after its quote.
    Quoted,
    /// With a tag, or the end of the arguments.
    Tagged,
    /// There are no arguments.
    Empty,
}

/// Facts about the start of a call, known before its name is read.
#[derive(Clone, Copy, Debug)]
struct HeadContext {
    is_marked: bool,
    is_line_start: bool,
}

/// Returns the markers that end a call or a section of calls.
pub(crate) fn closers(format: &CallFormat) -> [&'static str; 2] {
    [format.after_call.trim(), format.after_calls.trim()]
}

/// Returns the markers that begin a section of calls or a call.
pub(crate) fn openers(format: &CallFormat) -> [&'static str; 2] {
    let first = if format.is_bare() { format.optional_opener } else { format.before_calls };
    [first.trim(), format.before_call.trim()]
}

/// Returns whether name and arguments are members of the same JSON object.
pub(crate) fn has_envelope(format: &CallFormat) -> bool {
    format.before_name.starts_with('{')
}

/// Looks for the beginning of a call at this place.
pub(crate) fn find(
    format: &'static CallFormat,
    tools: &[Tool],
    start: Scan<'_>,
    is_line_start: bool,
) -> ScanResult<CallHead> {
    let mut scan = start;
    let context = HeadContext { is_marked: take_openers(format, &mut scan)?, is_line_start };
    let others = if context.is_marked { alternatives(format) } else { &[] };
    for &format in std::iter::once(&format).chain(others) {
        match head(format, tools, scan, context) {
            Ok((body, end)) => {
                return Ok(CallHead { format, n_bytes: start.until(end).len(), body });
            }
            Err(ScanError::Incomplete) => return Err(ScanError::Incomplete),
            Err(ScanError::Mismatch) => {}
        }
    }
    Err(ScanError::Mismatch)
}

/// Looks for the beginning of a call without a marker at the start of an answer.
pub(crate) fn bare(
    format: &'static CallFormat,
    tools: &[Tool],
    start: Scan<'_>,
) -> ScanResult<CallHead> {
    let (tool_idx, mut scan) = bare_key(tools, start)?;
    scan.blank()?;
    match object_begins(&mut scan)? {
        ArgumentsStart::Empty | ArgumentsStart::Tagged => Err(ScanError::Mismatch),
        arguments_start => {
            let body = CallBody::Arguments(CalledTool { tool_idx, id: None }, arguments_start);
            Ok(CallHead { format, n_bytes: start.until(scan).len(), body })
        }
    }
}

/// Takes the beginning of a call without a marker, up to the colon in front of its arguments. Only
/// the order of the template is taken, because calls in other orders are certain only at their end.
pub(crate) fn bare_key<'a>(tools: &[Tool], start: Scan<'a>) -> ScanResult<(usize, Scan<'a>)> {
    let mut scan = start;
    for literal in ["{", "\"type\"", ":", "\"function\"", ","] {
        scan.blank()?;
        match scan.literal(literal) {
            // Models add this member in front of the template's.
            Err(ScanError::Mismatch) if literal == "\"type\"" => break,
            taken => taken?,
        }
    }
    scan.blank()?;
    key_and_quote(&mut scan)?;
    let (tool_idx, mut scan) = named(tools, scan)?;
    arguments_key(&mut scan)?;
    Ok((tool_idx, scan))
}

fn take_openers(format: &CallFormat, scan: &mut Scan<'_>) -> ScanResult<bool> {
    for n_taken in 0..OPENERS_MAX {
        match scan.one_of(&openers(format)) {
            Ok(_) => scan.blank()?,
            Err(ScanError::Mismatch) => return Ok(n_taken > 0),
            Err(ScanError::Incomplete) => return Err(ScanError::Incomplete),
        }
    }
    Ok(true)
}

/// Returns formats with the same opening marker, which models confuse with this one.
fn alternatives(format: &CallFormat) -> &'static [&'static CallFormat] {
    match (has_envelope(format), format.arguments) {
        (true, _) => &[&format::QWEN_XML],
        (false, ArgumentsForm::Tagged(_)) => &[&format::HERMES],
        (false, ArgumentsForm::Json) if format.before_calls == format::DEEPSEEK_V3.before_calls => {
            &[&format::DEEPSEEK_V3, &format::DEEPSEEK_V3_1]
        }
        (false, ArgumentsForm::Json) => &[],
    }
}

fn head<'a>(
    format: &CallFormat,
    tools: &[Tool],
    scan: Scan<'a>,
    context: HeadContext,
) -> ScanResult<(CallBody, Scan<'a>)> {
    if has_envelope(format) {
        return envelope(tools, scan, context);
    }
    let mut scan = scan;
    let start = scan;
    let prefix = format.before_name.trim();
    let is_distinctive = prefix.starts_with('<');
    let has_prefix = prefix.is_empty() || scan.may_take(prefix)?;
    let is_allowed = if context.is_marked {
        has_prefix || !is_distinctive
    } else {
        has_prefix && (is_distinctive || context.is_line_start)
    };
    if !is_allowed {
        return Err(ScanError::Mismatch);
    }
    scan.blank()?;
    one_tool(tools, |tool_idx, tool| {
        let mut scan = scan;
        scan.literal(&tool.name)?;
        if format.name == NameForm::Numbered && scan.may_take(":")? {
            scan.digits(DIGITS_MAX)?;
        }
        let end_of_id = scan;
        scan.blank()?;
        let arguments_start = match format.arguments {
            ArgumentsForm::Json => json_begins(format, &mut scan, context)?,
            ArgumentsForm::Tagged(_) => tags_begin(format, &mut scan)?,
        };
        let id =
            (format.name == NameForm::Numbered).then(|| start.until(end_of_id).trim().to_owned());
        Ok((CallBody::Arguments(CalledTool { tool_idx, id }, arguments_start), scan))
    })
}

/// Returns the match of the tool with the longest name.
fn one_tool<T>(tools: &[Tool], find: impl Fn(usize, &Tool) -> ScanResult<T>) -> ScanResult<T> {
    let mut best: ScanResult<(usize, T)> = Err(ScanError::Mismatch);
    for (tool_idx, tool) in tools.iter().enumerate().filter(|(_, it)| !it.name.is_empty()) {
        let n_best = best.as_ref().map_or(0, |(n_bytes, _)| *n_bytes);
        match find(tool_idx, tool) {
            Ok(found) if tool.name.len() > n_best => best = Ok((tool.name.len(), found)),
            Ok(_) | Err(ScanError::Mismatch) => {}
            Err(ScanError::Incomplete) => return Err(ScanError::Incomplete),
        }
    }
    best.map(|(_, found)| found)
}

fn json_begins(
    format: &CallFormat,
    scan: &mut Scan<'_>,
    context: HeadContext,
) -> ScanResult<ArgumentsStart> {
    const FENCE: &str = "```";
    let after = format.after_name.trim();
    let has_after = match after.strip_prefix(FENCE) {
        Some(language) if scan.may_take(FENCE)? => {
            scan.may_take(language)?;
            true
        }
        Some(_) => false,
        None => scan.may_take(after)?,
    };
    if !has_after && !context.is_marked {
        return Err(ScanError::Mismatch);
    }
    scan.blank()?;
    let [call, calls] = closers(format);
    let ends = [format.after_arguments.trim(), call, calls];
    let is_over = if has_after { { *scan }.one_of(&ends) } else { Err(ScanError::Mismatch) };
    scan::any([is_over.map(|_| ArgumentsStart::Empty), object_begins(scan)])
}

/// Takes the beginning of an object, of a string that contains an object, or of empty arguments.
fn object_begins(scan: &mut Scan<'_>) -> ScanResult<ArgumentsStart> {
    let mut ahead = *scan;
    match ahead.one_of(&["{", "\"", "null"])? {
        0 => return Ok(ArgumentsStart::Object),
        2 => {
            ahead.end_of_word()?;
            *scan = ahead;
            return Ok(ArgumentsStart::Empty);
        }
        _ => {}
    }
    *scan = ahead;
    ahead.blank()?;
    if ahead.one_of(&["{", "\""])? == 1 {
        *scan = ahead;
        return Ok(ArgumentsStart::Empty);
    }
    Ok(ArgumentsStart::Quoted)
}

fn tags_begin(format: &CallFormat, scan: &mut Scan<'_>) -> ScanResult<ArgumentsStart> {
    let ArgumentsForm::Tagged(tags) = format.arguments else { return Err(ScanError::Mismatch) };
    let after = format.after_name.trim();
    if !after.is_empty() {
        scan.literal(after)?;
        scan.blank()?;
    }
    let next = [tags.before_key, format.after_arguments, format.after_call].map(str::trim);
    let mut ahead = *scan;
    ahead.one_of(&[&next[..], &openers(format)].concat())?;
    Ok(ArgumentsStart::Tagged)
}

fn envelope<'a>(
    tools: &[Tool],
    mut scan: Scan<'a>,
    context: HeadContext,
) -> ScanResult<(CallBody, Scan<'a>)> {
    let start = scan;
    let body = CallBody::Envelope { is_marked: context.is_marked };
    if !context.is_marked && !context.is_line_start {
        return Err(ScanError::Mismatch);
    }
    match name_begins(&mut scan) {
        Ok(()) => {}
        Err(ScanError::Mismatch) if context.is_marked && (start.is_at("{") || start.is_at("[")) => {
            return Ok((body, start));
        }
        Err(error) => return Err(error),
    }
    let (tool_idx, mut scan) = named(tools, scan)?;
    if !context.is_marked {
        return Ok((body, start));
    }
    let arguments = arguments_key(&mut scan).and_then(|()| {
        scan.blank()?;
        object_begins(&mut scan)
    });
    match arguments {
        // Since there is a key for the arguments, only an object counts as arguments.
        Ok(arguments_start @ (ArgumentsStart::Object | ArgumentsStart::Quoted)) => {
            Ok((CallBody::Arguments(CalledTool { tool_idx, id: None }, arguments_start), scan))
        }
        Err(ScanError::Incomplete) => Err(ScanError::Incomplete),
        _ => Ok((body, start)),
    }
}

/// Takes the name of a tool and the quote after it.
pub(crate) fn named<'a>(tools: &[Tool], scan: Scan<'a>) -> ScanResult<(usize, Scan<'a>)> {
    one_tool(tools, |tool_idx, tool| {
        let mut scan = scan;
        scan.literal(&tool.name)?;
        scan.literal("\"")?;
        Ok((tool_idx, scan))
    })
}

/// Takes `{"name": "`.
fn name_begins(scan: &mut Scan<'_>) -> ScanResult<()> {
    scan.literal("{")?;
    scan.blank()?;
    key_and_quote(scan)
}

/// Takes `"name": "`.
fn key_and_quote(scan: &mut Scan<'_>) -> ScanResult<()> {
    for literal in ["\"name\"", ":"] {
        scan.literal(literal)?;
        scan.blank()?;
    }
    scan.literal("\"")
}

/// Takes `, "arguments":`.
fn arguments_key(scan: &mut Scan<'_>) -> ScanResult<()> {
    scan.blank()?;
    scan.literal(",")?;
    scan.blank()?;
    scan.one_of(&["\"arguments\"", "\"parameters\""])?;
    scan.blank()?;
    scan.literal(":")
}
