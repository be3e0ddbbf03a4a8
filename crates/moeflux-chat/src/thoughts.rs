//! The ways to tell thoughts from text, as the literals that chat templates write.
//!
//! Most models put a thought between two tags in front of the text. In harmony an answer is a row
//! of messages, each with a header that names its channel. **Invariant:** the chat template decides
//! which one a model uses. Knows no calls.

use moeflux::ChatTemplate;

use crate::calls::scan::BLANK_BYTES_MAX;

/// One way to tell thoughts from text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThoughtFormat {
    /// For tests and messages.
    pub title: &'static str,
    /// Before a thought.
    pub(crate) open: &'static str,
    /// Behind a thought.
    pub(crate) close: &'static str,
    /// What else there is.
    pub(crate) layout: Layout,
}

/// What an answer consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A thought at most, then text.
    ThoughtFirst,
    /// Messages, as thoughts and texts; behind each but the last stands this.
    Messages { next: &'static str },
}

/// `<think>` and `</think>`: most models.
pub(crate) const THINK: ThoughtFormat = ThoughtFormat {
    title: "think",
    open: "<think>",
    close: "</think>",
    layout: Layout::ThoughtFirst,
};

/// The same with a suffix: Hunyuan 3.
pub(crate) const THINK_OPENSOURCE: ThoughtFormat = ThoughtFormat {
    title: "think_opensource",
    open: "<think:opensource>",
    close: "</think:opensource>",
    layout: Layout::ThoughtFirst,
};

/// Channels: gpt-oss.
pub(crate) const HARMONY: ThoughtFormat = ThoughtFormat {
    title: "harmony",
    open: "<|channel|>analysis<|message|>",
    close: "<|end|>",
    layout: Layout::Messages { next: "<|start|>assistant" },
};

/// All markers of harmony, which its tokenizer has as tokens.
pub(crate) const HARMONY_MARKERS: [&str; 7] = [
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
];

/// Each format with what a template that writes it contains, the most telling first.
const BY_TEMPLATE: [(&ThoughtFormat, &[&str]); 3] = [
    (&HARMONY, &["<|channel|>analysis<|message|>", "<|start|>assistant"]),
    (&THINK_OPENSOURCE, &["</think", ":opensource"]),
    (&THINK, &["</think>"]),
];

/// What the text of an answer begins with, where a thought may come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    Unknown,
    /// A thought, whose text begins at this byte.
    Opened(usize),
    /// The end of a thought: a template may open one in a way that cannot be seen. What follows
    /// begins at this byte.
    Closed(usize),
    /// Something else.
    None,
}

impl ThoughtFormat {
    /// `<think>` and `</think>`, for models whose template says nothing.
    #[must_use]
    pub fn usual() -> &'static Self {
        &THINK
    }

    /// All formats.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        [&THINK, &THINK_OPENSOURCE, &HARMONY].into_iter()
    }

    /// The format in which this template writes thoughts; `None` if it writes none that is known.
    #[must_use]
    pub fn of(template: &ChatTemplate) -> Option<&'static Self> {
        let is_written = |marks: &[&str]| marks.iter().all(|mark| template.mentions(mark));
        BY_TEMPLATE.iter().find(|(_, marks)| is_written(marks)).map(|(format, _)| *format)
    }

    /// What stands between two messages of an answer behind the end of the first, if an answer has
    /// several.
    pub(crate) fn next(&self) -> Option<&'static str> {
        match self.layout {
            Layout::ThoughtFirst => None,
            Layout::Messages { next } => Some(next),
        }
    }

    /// All markers that a tokenizer may have as tokens.
    pub(crate) fn markers(&self) -> Vec<&'static str> {
        match self.layout {
            Layout::ThoughtFirst => vec![self.open, self.close],
            Layout::Messages { .. } => HARMONY_MARKERS.to_vec(),
        }
    }

    /// Whether a marker of thoughts is in a text.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        text.contains(self.open) || text.contains(self.close)
    }

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
