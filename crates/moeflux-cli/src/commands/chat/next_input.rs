//! The next input of a chat, as far as it is known before it is read: a line that was typed ahead,
//! or the text that the next prompt begins with.
//!
//! **Invariant:** no text that was typed is lost, except for a question that is withdrawn while
//! other text waits: that one stays in the history. This module is independent of models and
//! terminals.

use crate::commands::chat::editor::InputLine;
use crate::commands::chat::type_ahead::TypeAhead;

/// The start of the next input.
#[derive(Debug, Default)]
pub(crate) struct NextInput {
    /// The text that is typed during an answer.
    pub(crate) type_ahead: TypeAhead,
    /// A line that was typed ahead and is processed next.
    queued: Option<InputLine>,
    /// Initial text of the next prompt.
    initial: String,
    /// Whether `initial` is a question that has no answer.
    is_question_back: bool,
}

impl NextInput {
    /// Takes the line that is processed next.
    pub(crate) fn take_queued(&mut self) -> Option<InputLine> {
        self.queued.take()
    }

    /// Takes the initial text of the next prompt.
    pub(crate) fn take_initial(&mut self) -> String {
        std::mem::take(&mut self.initial)
    }

    /// Puts text typed ahead into the next prompt, or queues it if Enter was pressed and nothing
    /// unexpected happened. Ctrl-D ends the chat in any case.
    pub(crate) fn take_type_ahead(&mut self, is_kept: bool) {
        let is_end = self.type_ahead.is_end();
        let (text, is_whole) = self.type_ahead.take();
        if is_end {
            self.queued = Some(InputLine::End);
        } else if is_whole && !is_kept {
            self.queued = Some(InputLine::Text(text));
        } else if !text.is_empty() {
            self.initial = text;
        }
    }

    /// Moves an unanswered question back into the prompt, or leaves it in the history if other text
    /// was typed since.
    pub(crate) fn put_back(&mut self, question: String) {
        self.is_question_back = self.initial.is_empty();
        if self.is_question_back {
            self.initial = question;
        }
    }

    /// Returns whether the question that was put back last is in the prompt.
    pub(crate) fn is_question_back(&self) -> bool {
        self.is_question_back
    }
}
