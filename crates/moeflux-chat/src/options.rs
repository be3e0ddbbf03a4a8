//! The inputs of a chat template other than the conversation.

use std::fmt;

use moeflux::TextLimit;
use serde_json::{Map, Value as Json};

/// Template variables that are set from the conversation, and may not be set otherwise.
pub const OWN_VARIABLES: [&str; 5] =
    ["messages", "tools", "documents", "add_generation_prompt", "strftime_now"];

/// The inputs of a chat template other than the conversation.
#[derive(Clone, Default, PartialEq)]
pub struct ChatOptions {
    /// Whether the model should think first; `None` leaves it to the template.
    pub thinking: Option<bool>,
    /// The caller's wall clock in seconds since 1970, for templates that write the date.
    pub now_seconds: Option<i64>,
    /// More variables, by name.
    pub variables: Map<String, Json>,
    /// Limits on converting the prompt to tokens.
    pub limit: TextLimit,
    /// The owner of the earlier answers whose sampled tokens may be reused: see
    /// [`crate::Chat::with_replays`].
    pub owner: usize,
}

impl ChatOptions {
    /// Returns whether the template is given a reasoning effort.
    pub(crate) fn names_effort(&self) -> bool {
        self.variables.contains_key("reasoning_effort")
    }
}

impl fmt::Debug for ChatOptions {
    /// Shows the limit only where there is one, because it is not a client's choice.
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
