//! The conversation of a chat: its transcript, its file, and whether the model speaks next.
//!
//! **Invariant:** a failure changes nothing. This module is independent of models and terminals.

use std::path::{Path, PathBuf};

use moeflux::Result;

use crate::commands::chat::file;
use crate::commands::chat::transcript::Transcript;

/// The conversation of a chat.
#[derive(Debug, Default)]
pub(crate) struct ChatConversation {
    pub(crate) transcript: Transcript,
    /// The file that the conversation was last written to or read from.
    file: Option<PathBuf>,
    /// Whether the model speaks next.
    answers_next: bool,
}

impl ChatConversation {
    /// Adds a message of the user. The model speaks next if nothing else is missing.
    pub(crate) fn add_input(&mut self, text: &str) {
        self.transcript.add_input(text.to_owned());
        self.answers_next = self.transcript.is_unanswered();
    }

    /// Removes the last answer, so that the model speaks next. Returns whether it can.
    pub(crate) fn take_back_answer(&mut self) -> bool {
        let is_unanswered = self.transcript.take_back_answer();
        self.answers_next |= is_unanswered;
        is_unanswered
    }

    /// Returns whether the model speaks next, once.
    pub(crate) fn take_turn_of_model(&mut self) -> bool {
        std::mem::take(&mut self.answers_next)
    }

    /// Loads a conversation in the place of this one.
    pub(crate) fn load(&mut self, path: &Path) -> Result<()> {
        self.transcript.replace(file::load(path)?);
        self.file = Some(path.to_owned());
        Ok(())
    }

    /// Returns whether a save would replace a file that is not the conversation's own.
    pub(crate) fn is_foreign(&self, path: &Path) -> bool {
        self.file.as_deref() != Some(path) && path.is_file()
    }

    /// Writes the conversation to a new file or to its own.
    pub(crate) fn save(&mut self, path: &Path) -> Result<()> {
        file::save(&self.transcript, path, self.file.as_deref())?;
        self.file = Some(path.to_owned());
        Ok(())
    }

    /// Writes the conversation to any file.
    pub(crate) fn overwrite(&mut self, path: &Path) -> Result<()> {
        file::save(&self.transcript, path, Some(path))?;
        self.file = Some(path.to_owned());
        Ok(())
    }

    /// Returns the number of messages, in words.
    pub(crate) fn length(&self) -> String {
        match self.transcript.turns().len() {
            1 => "1 message".to_owned(),
            n_turns => format!("{n_turns} messages"),
        }
    }
}
