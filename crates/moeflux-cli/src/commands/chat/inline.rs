//! Markup inside a line: bold, italic and code.
//!
//! Text that looks like markup is held until its end is found. If the end does not come within the
//! line, or within [`HELD_BYTES_MAX`], it is plain text. **Invariant:** only the markers of pairs
//! are left out; a decision about the start of a text holds regardless of the text that follows.

use crate::output::screen::style::{Span, Style, add};

/// Upper bound on the bytes held while waiting for the end of markup: about three lines.
pub(crate) const HELD_BYTES_MAX: usize = 240;

/// The first part of a text, with or without markup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InlineToken<'t> {
    /// Plain text.
    Plain(&'t str),
    /// A run of marks too long for a marker. Marks that follow belong to the run, and are text too.
    Run(&'t str),
    /// Text between markers.
    Marked { style: Style, inner: &'t str, marker_bytes: usize },
    /// Undecided: it depends on the text that follows.
    Unknown,
}

/// Classifies the start of a non-empty text that follows `before` in the same line. `is_end`: the
/// line ends after the text.
pub(crate) fn next_token(text: &str, before: Option<char>, is_end: bool) -> InlineToken<'_> {
    let first = text.chars().next().expect("there is text");
    match first {
        '\\' => escape(text, is_end),
        '`' | '*' | '_' => {
            let run = run_of(text, first);
            if run.len() > HELD_BYTES_MAX {
                return InlineToken::Run(run);
            }
            if run.len() == text.len() && !is_end {
                return InlineToken::Unknown;
            }
            // Held text longer than this is plain text, regardless of what has come since.
            let window = &text[..text.floor_char_boundary(HELD_BYTES_MAX)];
            let is_all = is_end || window.len() < text.len();
            match end_of(window, (first, run.len()), before, is_all) {
                ClosingMarker::At(end) => {
                    let (inner, marker_bytes) = (&text[run.len()..end], run.len());
                    InlineToken::Marked {
                        style: style_of(first, marker_bytes),
                        inner,
                        marker_bytes,
                    }
                }
                ClosingMarker::None => InlineToken::Plain(run),
                ClosingMarker::Unknown => InlineToken::Unknown,
            }
        }
        _ => {
            let end = text.find(['\\', '`', '*', '_']).unwrap_or(text.len());
            InlineToken::Plain(&text[..end])
        }
    }
}

/// Renders a whole text, adding markup to a base style.
pub(crate) fn render(text: &str, style: Style, spans: &mut Vec<Span>) {
    let (mut rest, mut before) = (text, None);
    while !rest.is_empty() {
        let n_bytes = match next_token(rest, before, true) {
            InlineToken::Plain(plain) | InlineToken::Run(plain) => {
                add(spans, style, plain);
                plain.len()
            }
            InlineToken::Marked { style: inner_style, inner, marker_bytes } => {
                render_marked((inner_style, inner), style, spans);
                inner.len() + 2 * marker_bytes
            }
            InlineToken::Unknown => unreachable!("at the end all is known"),
        };
        before = rest[..n_bytes].chars().next_back();
        rest = &rest[n_bytes..];
    }
}

/// Renders the text between markers. Code is shown as it is, without the blanks that separate it
/// from its markers; other text may contain more markup.
pub(crate) fn render_marked((style, inner): (Style, &str), base: Style, spans: &mut Vec<Span>) {
    let style = base.and(style);
    if style == base.and(Style::CODE) {
        let unpadded = inner.strip_prefix(' ').and_then(|it| it.strip_suffix(' '));
        let unpadded = unpadded.filter(|it| !it.trim().is_empty());
        add(spans, style, unpadded.unwrap_or(inner));
    } else {
        render(inner, style, spans);
    }
}

/// Handles a backslash: it is shown, and the mark after it is plain text.
fn escape(text: &str, is_end: bool) -> InlineToken<'_> {
    match text[1..].chars().next() {
        None if !is_end => InlineToken::Unknown,
        Some(escaped) if escaped.is_ascii_punctuation() => InlineToken::Plain(&text[..2]),
        _ => InlineToken::Plain(&text[..1]),
    }
}

fn style_of(marker: char, n_markers: usize) -> Style {
    match (marker, n_markers) {
        ('`', _) => Style::CODE,
        (_, 1) => Style::ITALIC,
        (_, 2) => Style::BOLD,
        _ => Style::BOLD.and(Style::ITALIC),
    }
}

/// The end of the inner text of a pair.
enum ClosingMarker {
    At(usize),
    None,
    Unknown,
}

/// Finds the end of the markup that a run of markers at the start of a text opens.
fn end_of(text: &str, run: (char, usize), before: Option<char>, is_all: bool) -> ClosingMarker {
    let unknown = if is_all { ClosingMarker::None } else { ClosingMarker::Unknown };
    let (marker, n_markers) = run;
    if n_markers >= text.len() {
        return unknown;
    }
    if marker == '`' {
        return end_of_code(text, n_markers, is_all);
    }
    if n_markers > 3 || !opens(marker, before, text[n_markers..].chars().next()) {
        return ClosingMarker::None;
    }
    let mut at = n_markers;
    while let Some(found) = text[at..].find(['\\', '`', marker]) {
        at += found;
        let rest = &text[at..];
        if let Some(escaped) = rest.strip_prefix('\\') {
            at += 1 + escaped.chars().next().map_or(0, char::len_utf8);
            continue;
        }
        if rest.starts_with('`') {
            let n_ticks = run_of(rest, '`').len();
            match end_of_code(rest, n_ticks, is_all) {
                ClosingMarker::At(end) => at += end + n_ticks,
                ClosingMarker::None => at += n_ticks,
                // An apparent end may turn out to be part of code.
                ClosingMarker::Unknown => return ClosingMarker::Unknown,
            }
            continue;
        }
        let n_found = run_of(rest, marker).len();
        let after = rest[n_found..].chars().next();
        if after.is_none() && !is_all {
            return ClosingMarker::Unknown;
        }
        if n_found == n_markers && closes(marker, text[..at].chars().next_back(), after) {
            return ClosingMarker::At(at);
        }
        at += n_found;
    }
    unknown
}

/// Finds the end of the code that `n_ticks` backticks at the start of a text open.
fn end_of_code(text: &str, n_ticks: usize, is_all: bool) -> ClosingMarker {
    let mut at = n_ticks;
    while let Some(found) = text[at..].find('`') {
        at += found;
        let n_found = run_of(&text[at..], '`').len();
        if at + n_found == text.len() && !is_all {
            return ClosingMarker::Unknown;
        }
        if n_found == n_ticks {
            return ClosingMarker::At(at);
        }
        at += n_found;
    }
    if is_all { ClosingMarker::None } else { ClosingMarker::Unknown }
}

fn opens(marker: char, before: Option<char>, after: Option<char>) -> bool {
    let is_word = marker == '_' && touches(after, before) && !is_mark(before);
    touches(before, after) && !is_word
}

fn closes(marker: char, before: Option<char>, after: Option<char>) -> bool {
    let is_word = marker == '_' && touches(before, after) && !is_mark(after);
    touches(after, before) && !is_word
}

/// Returns whether markers belong to `inner` and not to the text on their other side.
fn touches(outer: Option<char>, inner: Option<char>) -> bool {
    let is_apart = outer.is_none_or(char::is_whitespace) || is_mark(outer);
    inner.is_some_and(|it| !it.is_whitespace()) && (!is_mark(inner) || is_apart)
}

/// Only ASCII counts: other punctuation may touch letters in languages without blanks.
fn is_mark(letter: Option<char>) -> bool {
    letter.is_some_and(|it| it.is_ascii_punctuation())
}

/// Returns the leading run of `letter`.
fn run_of(text: &str, letter: char) -> &str {
    let end = text.find(|it| it != letter).unwrap_or(text.len());
    &text[..end]
}
