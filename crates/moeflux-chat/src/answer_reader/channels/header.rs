//! Finds the header of a message: its author, its channel and its recipient.
//!
//! A header consists of `<|start|>` and a role, `<|channel|>` and its name, and `<|message|>`. The
//! recipient (`to=functions.f`) and the content type (`<|constrain|>json`) follow the role or the
//! channel. **Invariant:** text that cannot begin a header is never one, however much of it is
//! known.

use crate::calls::scan::{BLANK_BYTES_MAX, Scan, ScanError, ScanResult, StreamState};

pub(crate) const START: &str = "<|start|>";
pub(crate) const CHANNEL: &str = "<|channel|>";
pub(crate) const CONSTRAIN: &str = "<|constrain|>";
pub(crate) const MESSAGE: &str = "<|message|>";
pub(crate) const END: &str = "<|end|>";
pub(crate) const RETURN: &str = "<|return|>";
pub(crate) const CALL: &str = "<|call|>";

/// Maximum length of a header; a longer one is text.
const HEADER_BYTES_MAX: usize = 1024;

/// Maximum number of words: role, channel, and a recipient and a type after each.
const WORDS_MAX: usize = 6;

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChannelHeader {
    /// Its length in bytes.
    pub(crate) n_bytes: usize,
    /// The kind of the message.
    pub(crate) kind: MessageKind,
    /// The recipient, if it is a tool.
    pub(crate) recipient: Option<String>,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    Thought,
    Text,
    /// The message of another author, in an answer that does not stop at its own end.
    Foreign,
}

/// The position at which a header is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderPosition {
    /// At the start of an answer, after the role.
    Start,
    /// After the end of a message.
    After,
    /// In a message without an end marker; the header must have a known channel or role.
    Within,
}

/// Returns the header at the start of this text; [`ScanError::Incomplete`] while the text may
/// become one.
pub(crate) fn find(text: &str, position: HeaderPosition) -> ScanResult<ChannelHeader> {
    let rest = text.trim_start();
    if text.len() - rest.len() > BLANK_BYTES_MAX {
        return Err(ScanError::Mismatch);
    }
    let begins: &[&str] = match position {
        HeaderPosition::Start => &[START, CHANNEL, CONSTRAIN, MESSAGE, "to="],
        HeaderPosition::After | HeaderPosition::Within => &[START, CHANNEL],
    };
    Scan::new(rest, StreamState::More).one_of(begins)?;
    let end = rest.find(MESSAGE);
    let header = &rest[..end.unwrap_or(rest.len() - n_unfinished(rest))];
    if header.len() > HEADER_BYTES_MAX || !is_plausible(header) {
        return Err(ScanError::Mismatch);
    }
    let end = end.ok_or(ScanError::Incomplete)?;
    let (kind, recipient) = parsed(header, position).ok_or(ScanError::Mismatch)?;
    let n_bytes = text.len() - rest.len() + end + MESSAGE.len();
    Ok(ChannelHeader { n_bytes, kind, recipient })
}

/// Returns whether this may be a header or its beginning: a few words between the right markers.
fn is_plausible(header: &str) -> bool {
    // Whitespace may arrive late: it is held back while it may begin a stop sequence.
    let is_control = |it: char| it.is_control() && !it.is_whitespace();
    let is_odd = |it: char| is_control(it) || matches!(it, '<' | '>' | '"' | '\'' | '`');
    let words = header.strip_prefix(START).unwrap_or(header).replacen(CHANNEL, " ", 1);
    let words = words.replace(CONSTRAIN, " ");
    words.split_whitespace().count() <= WORDS_MAX && !words.contains(is_odd)
}

/// Returns the length of an unfinished marker at the end of a text.
pub(crate) fn n_unfinished(text: &str) -> usize {
    let Some(at) = text.rfind('<') else { return 0 };
    let tail = &text[at..];
    let markers = [START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL];
    let is_begun = |marker: &&str| marker.len() > tail.len() && marker.starts_with(tail);
    if markers.iter().any(is_begun) { tail.len() } else { 0 }
}

fn parsed(header: &str, position: HeaderPosition) -> Option<(MessageKind, Option<String>)> {
    let (has_role, rest) = match header.strip_prefix(START) {
        Some(rest) => (true, rest),
        None => (false, header),
    };
    let (front, after) = match rest.split_once(CHANNEL) {
        Some((front, after)) => (front, Some(after)),
        None => (rest, None),
    };
    let (role, to_in_front) = words(front, has_role)?;
    let (channel, to_after) = match after {
        Some(after) => words(after, true)?,
        None => (None, None),
    };
    let kind = match channel.as_deref() {
        Some("analysis") => Some(MessageKind::Thought),
        Some("commentary" | "final") => Some(MessageKind::Text),
        _ => None,
    };
    let is_ours = role.as_deref().is_none_or(|it| it == "assistant");
    let is_role = matches!(role.as_deref(), Some("assistant" | "user" | "system" | "developer"));
    if position == HeaderPosition::Within && kind.is_none() && !is_role {
        return None;
    }
    let recipient = to_after.or(to_in_front);
    let recipient = recipient.filter(|it| !matches!(it.as_str(), "assistant" | "user" | "all"));
    let kind = if is_ours { kind.unwrap_or(MessageKind::Text) } else { MessageKind::Foreign };
    Some((kind, recipient.filter(|_| is_ours)))
}

/// Splits a text into its first word, if `has_first`, and the recipient. Apart from these it may
/// only contain a type.
fn words(text: &str, has_first: bool) -> Option<(Option<String>, Option<String>)> {
    let text = text.replace(CONSTRAIN, " ");
    let mut words = text.split_whitespace();
    let first = if has_first { Some(words.next()?.to_owned()) } else { None };
    let (mut recipient, mut n_types) = (None, 0);
    for word in words {
        match word.strip_prefix("to=") {
            Some(name) if recipient.is_none() && !name.is_empty() => {
                recipient = Some(name.to_owned());
            }
            Some(_) => return None,
            None => n_types += 1,
        }
    }
    (n_types <= 1).then_some((first, recipient))
}
