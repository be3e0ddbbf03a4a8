//! Finds a call without a marker at the start of an answer that arrives token by token.
//!
//! **Invariant:** any other answer is free. A call is found in front of its arguments, so that none
//! of them is written without the grammar. This module is independent of grammars.

use std::sync::Arc;

use crate::calls::format::CallFormat;
use crate::calls::head;
use crate::calls::scan::{Scan, ScanError, ScanResult, StreamState};
use crate::conversation::Tool;
use crate::grammar::calls;

/// The start of an answer that may still become a call.
#[derive(Clone)]
pub(crate) struct BareStart {
    format: &'static CallFormat,
    tools: Arc<[Tool]>,
    /// The answer so far.
    written: Vec<u8>,
}

impl BareStart {
    pub(crate) fn new(format: &'static CallFormat, tools: Arc<[Tool]>) -> Self {
        Self { format, tools, written: Vec::new() }
    }

    /// Takes text. Once a call has begun, returns its text as the template writes it.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> ScanResult<Vec<u8>> {
        self.written.extend_from_slice(bytes);
        let text = match std::str::from_utf8(&self.written) {
            Ok(text) => text,
            // The rest of the character may still come.
            Err(error) if error.error_len().is_none() => return Err(ScanError::Incomplete),
            Err(_) => return Err(ScanError::Mismatch),
        };
        let start = Scan::new(text, StreamState::More);
        let (tool_idx, end) = head::bare_key(&self.tools, start)?;
        let rest = &text[start.until(end).len()..];
        let key = calls::bare_key(self.format, &self.tools[tool_idx]);
        let blank = if rest.is_empty() { "" } else { " " };
        Ok(format!("{key}{blank}{}", rest.trim_start()).into_bytes())
    }

    /// Returns whether the text so far may be that of a call in which a colon is missing.
    pub(crate) fn is_begun(&self) -> bool {
        self.written.trim_ascii_start().starts_with(b"{")
    }
}
