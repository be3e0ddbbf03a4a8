//! Formats that separate thoughts from text: the literal strings that chat templates write.
//!
//! Most models put a thought between two tags in front of the text. In harmony an answer is a
//! sequence of messages, each with a header that names its channel. **Invariant:** the chat
//! template determines the format of a model. This module is independent of calls.

use moeflux::ChatTemplate;

use crate::calls::scan::BLANK_BYTES_MAX;

/// A format that separates thoughts from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThoughtFormat {
    /// A name for tests and error messages.
    pub title: &'static str,
    /// The marker before a thought.
    pub(crate) open: &'static str,
    /// The marker after a thought.
    pub(crate) close: &'static str,
    /// The structure of the whole answer.
    pub(crate) layout: AnswerLayout,
}

/// The structure of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerLayout {
    /// At most one thought, then text.
    ThoughtFirst,
    /// Messages that are thoughts or texts; `next` follows each but the last.
    Messages { next: &'static str },
}

/// `<think>` and `</think>`, used by most models.
pub(crate) const THINK: ThoughtFormat = ThoughtFormat {
    title: "think",
    open: "<think>",
    close: "</think>",
    layout: AnswerLayout::ThoughtFirst,
};

/// The tags of [`THINK`] with a suffix: Hunyuan 3.
pub(crate) const THINK_OPENSOURCE: ThoughtFormat = ThoughtFormat {
    title: "think_opensource",
    open: "<think:opensource>",
    close: "</think:opensource>",
    layout: AnswerLayout::ThoughtFirst,
};

/// The channels of gpt-oss.
pub(crate) const HARMONY: ThoughtFormat = ThoughtFormat {
    title: "harmony",
    open: "<|channel|>analysis<|message|>",
    close: "<|end|>",
    layout: AnswerLayout::Messages { next: "<|start|>assistant" },
};

/// All markers of harmony, which are tokens in its tokenizer.
pub(crate) const HARMONY_MARKERS: [&str; 7] = [
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
];

/// Each format with the strings that identify its templates, most specific first.
const BY_TEMPLATE: [(&ThoughtFormat, &[&str]); 3] = [
    (&HARMONY, &["<|channel|>analysis<|message|>", "<|start|>assistant"]),
    (&THINK_OPENSOURCE, &["</think", ":opensource"]),
    (&THINK, &["</think>"]),
];

/// The beginning of an answer's text, where a thought may come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Not decided yet: it needs more text.
    Unknown,
    /// The start of a thought; its text begins at this byte.
    Opened(usize),
    /// The end of a thought: the prompt may have opened it without our knowledge. The text after it
    /// begins at this byte.
    Closed(usize),
    /// Neither.
    None,
}

impl ThoughtFormat {
    /// Returns the format with `<think>` and `</think>`, for models whose template shows none.
    #[must_use]
    pub fn usual() -> &'static Self {
        &THINK
    }

    /// Returns all formats.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        [&THINK, &THINK_OPENSOURCE, &HARMONY].into_iter()
    }

    /// Returns the format in which this template writes thoughts; `None` if it writes no known one.
    #[must_use]
    pub fn of(template: &ChatTemplate) -> Option<&'static Self> {
        let is_written = |marks: &[&str]| marks.iter().all(|mark| template.mentions(mark));
        BY_TEMPLATE.iter().find(|(_, marks)| is_written(marks)).map(|(format, _)| *format)
    }

    /// Returns the text between the end of a message and the next message; `None` if an answer is
    /// not a sequence of messages.
    pub(crate) fn next(&self) -> Option<&'static str> {
        match self.layout {
            AnswerLayout::ThoughtFirst => None,
            AnswerLayout::Messages { next } => Some(next),
        }
    }

    /// Returns all markers that a tokenizer may have as tokens.
    pub(crate) fn markers(&self) -> Vec<&'static str> {
        match self.layout {
            AnswerLayout::ThoughtFirst => vec![self.open, self.close],
            AnswerLayout::Messages { .. } => HARMONY_MARKERS.to_vec(),
        }
    }

    /// Returns whether a text contains a marker of thoughts.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        text.contains(self.open) || text.contains(self.close)
    }

    /// Returns how the text of an answer begins. Blanks before a marker are skipped.
    pub(crate) fn opening(&self, text: &str) -> Opening {
        let rest = text.trim_start();
        let n_blank = text.len() - rest.len();
        if n_blank > BLANK_BYTES_MAX {
            Opening::None
        } else if rest.starts_with(self.open) {
            Opening::Opened(n_blank + self.open.len())
        } else if rest.starts_with(self.close) {
            Opening::Closed(n_blank + self.close.len())
        } else if self.open.starts_with(rest) || self.close.starts_with(rest) {
            Opening::Unknown
        } else {
            Opening::None
        }
    }
}
