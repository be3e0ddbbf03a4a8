//! Finds the header of a message: whom it is from, which channel it is in, whom it is to.
//!
//! A header is `<|start|>` and a role, `<|channel|>` and its name, and `<|message|>`. Whom the
//! message is to (`to=functions.f`) and the type of its content (`<|constrain|>json`) stand behind
//! the role or behind the channel. **Invariant:** what is the beginning of no header is no header,
//! however much of it is known.

use crate::calls::scan::{BLANK_BYTES_MAX, Coming, Found, Miss, Scan};

pub(crate) const START: &str = "<|start|>";
pub(crate) const CHANNEL: &str = "<|channel|>";
pub(crate) const CONSTRAIN: &str = "<|constrain|>";
pub(crate) const MESSAGE: &str = "<|message|>";
pub(crate) const END: &str = "<|end|>";
pub(crate) const RETURN: &str = "<|return|>";
pub(crate) const CALL: &str = "<|call|>";

/// A longer header is text.
const HEADER_BYTES_MAX: usize = 1024;

/// Role, channel, and behind each a recipient and a type.
const WORDS_MAX: usize = 6;

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Its length.
    pub(crate) n_bytes: usize,
    /// What the message is.
    pub(crate) says: Says,
    /// Whom it is to, if that is a tool.
    pub(crate) recipient: Option<String>,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Says {
    Thought,
    Text,
    /// Somebody else says it, in an answer that goes on by itself.
    NotOurs,
}

/// Where a header is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// At the start of an answer, behind the role.
    Start,
    /// Behind the end of a message.
    Behind,
    /// In a message that has no end: it must be one that is known.
    Within,
}

/// The header at the start of this text; [`Miss::Partial`] while it may become one.
pub(crate) fn find(text: &str, spot: Spot) -> Found<Header> {
    let rest = text.trim_start();
    if text.len() - rest.len() > BLANK_BYTES_MAX {
        return Err(Miss::No);
    }
    let begins: &[&str] = match spot {
        Spot::Start => &[START, CHANNEL, CONSTRAIN, MESSAGE, "to="],
        Spot::Behind | Spot::Within => &[START, CHANNEL],
    };
    Scan::new(rest, Coming::More).one_of(begins)?;
    let end = rest.find(MESSAGE);
    let header = &rest[..end.unwrap_or(rest.len() - n_unfinished(rest))];
    if header.len() > HEADER_BYTES_MAX || !is_plausible(header) {
        return Err(Miss::No);
    }
    let end = end.ok_or(Miss::Partial)?;
    let (says, recipient) = parsed(header, spot).ok_or(Miss::No)?;
    let n_bytes = text.len() - rest.len() + end + MESSAGE.len();
    Ok(Header { n_bytes, says, recipient })
}

/// Whether this may be a header, or its beginning: a few words between the right markers.
fn is_plausible(header: &str) -> bool {
    // Blank space may come late: it is held back while it may begin a string to stop at.
    let is_control = |it: char| it.is_control() && !it.is_whitespace();
    let is_odd = |it: char| is_control(it) || matches!(it, '<' | '>' | '"' | '\'' | '`');
    let words = header.strip_prefix(START).unwrap_or(header).replacen(CHANNEL, " ", 1);
    let words = words.replace(CONSTRAIN, " ");
    words.split_whitespace().count() <= WORDS_MAX && !words.contains(is_odd)
}

/// Length of the beginning of a marker at the end of a text.
pub(crate) fn n_unfinished(text: &str) -> usize {
    let Some(at) = text.rfind('<') else { return 0 };
    let tail = &text[at..];
    let markers = [START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL];
    let is_begun = |marker: &&str| marker.len() > tail.len() && marker.starts_with(tail);
    if markers.iter().any(is_begun) { tail.len() } else { 0 }
}

fn parsed(header: &str, spot: Spot) -> Option<(Says, Option<String>)> {
    let (has_role, rest) = match header.strip_prefix(START) {
        Some(rest) => (true, rest),
        None => (false, header),
    };
    let (front, behind) = match rest.split_once(CHANNEL) {
        Some((front, behind)) => (front, Some(behind)),
        None => (rest, None),
    };
    let (role, to_in_front) = words(front, has_role)?;
    let (channel, to_behind) = match behind {
        Some(behind) => words(behind, true)?,
        None => (None, None),
    };
    let says = match channel.as_deref() {
        Some("analysis") => Some(Says::Thought),
        Some("commentary" | "final") => Some(Says::Text),
        _ => None,
    };
    let is_ours = role.as_deref().is_none_or(|it| it == "assistant");
    let is_role = matches!(role.as_deref(), Some("assistant" | "user" | "system" | "developer"));
    if spot == Spot::Within && says.is_none() && !is_role {
        return None;
    }
    let recipient = to_behind.or(to_in_front);
    let recipient = recipient.filter(|it| !matches!(it.as_str(), "assistant" | "user" | "all"));
    let says = if is_ours { says.unwrap_or(Says::Text) } else { Says::NotOurs };
    Some((says, recipient.filter(|_| is_ours)))
}

/// A first word, if there is one to be, and whom the message is to; beside them only a type.
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
