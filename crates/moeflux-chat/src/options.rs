//! What a chat template is told beside the conversation.

use std::fmt;

use moeflux::TextLimit;
use serde_json::{Map, Value as Json};

/// Variables of a template that the conversation sets, so that nobody else may.
pub const OWN_VARIABLES: [&str; 5] =
    ["messages", "tools", "documents", "add_generation_prompt", "strftime_now"];

/// What a template is told beside the conversation.
#[derive(Clone, Default, PartialEq)]
pub struct ChatOptions {
    /// Whether to think first; `None` leaves it to the template.
    pub thinking: Option<bool>,
    /// Seconds since 1970 of the caller's wall clock, for templates that write the date.
    pub now_seconds: Option<i64>,
    /// More variables, by name.
    pub variables: Map<String, Json>,
    /// What the prompt may take on its way to tokens.
    pub limit: TextLimit,
    /// Whose earlier answers stand in the prompt as they were sampled: see
    /// [`crate::Chat::with_replays`].
    pub owner: usize,
}

impl ChatOptions {
    /// Whether the template is told how hard to think.
    pub(crate) fn names_effort(&self) -> bool {
        self.variables.contains_key("reasoning_effort")
    }
}

impl fmt::Debug for ChatOptions {
    /// The limit only where there is one: it is no wish of a client.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { thinking, variables, now_seconds, limit, owner: _ } = self;
        let mut shown = f.debug_struct("ChatOptions");
        shown.field("thinking", thinking).field("now_seconds", now_seconds);
        shown.field("variables", variables);
        if limit.n_tokens_max < usize::MAX {
            shown.field("limit", limit);
        }
        shown.finish()
    }
}
