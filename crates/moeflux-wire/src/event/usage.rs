//! Sums token counts over the answers to a request, in the shapes of the dialects.
//!
//! Fields that an API does not have stand beside those that it has; its clients ignore them.
//! **Invariant:** a prompt counts once, however many answers it has.

use serde_json::{Value as Json, json};

use crate::event::Usage;

/// The token counts of all answers that have ended.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    n_answers: usize,
    n_open: usize,
    sum: Usage,
}

impl Totals {
    /// Creates the totals for `n_prompts` prompts with `n_answers` answers each.
    pub(crate) fn new(n_prompts: usize, n_answers: usize) -> Self {
        Self { n_answers, n_open: n_prompts * n_answers, sum: Usage::default() }
    }

    /// Adds an answer that has ended. Returns whether it was the last.
    pub(crate) fn add(&mut self, index: usize, usage: Usage) -> bool {
        if index.is_multiple_of(self.n_answers) {
            self.sum.n_prompt_tokens += usage.n_prompt_tokens;
            self.sum.n_cached_tokens += usage.n_cached_tokens;
            self.sum.n_cached_drive_tokens += usage.n_cached_drive_tokens;
            self.sum.n_replayed += usage.n_replayed;
        }
        self.sum.n_answer_tokens += usage.n_answer_tokens;
        self.sum.n_thought_tokens += usage.n_thought_tokens;
        self.n_open = self.n_open.saturating_sub(1);
        self.n_open == 0
    }

    /// Returns the shape of Chat Completions and Completions.
    pub(crate) fn openai(&self) -> Json {
        let sum = self.sum;
        json!({
            "prompt_tokens": sum.n_prompt_tokens,
            "completion_tokens": sum.n_answer_tokens,
            "total_tokens": sum.n_prompt_tokens + sum.n_answer_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum.n_cached_tokens,
                "cached_tokens_drive": sum.n_cached_drive_tokens,
                "replayed_turns": sum.n_replayed,
            },
            "completion_tokens_details": {"reasoning_tokens": sum.n_thought_tokens},
        })
    }
}

/// Returns the shape of Responses.
pub(crate) fn responses(usage: Usage) -> Json {
    json!({
        "input_tokens": usage.n_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.n_cached_tokens,
            "cached_tokens_drive": usage.n_cached_drive_tokens,
            "cache_write_tokens": 0,
            "replayed_turns": usage.n_replayed,
        },
        "output_tokens": usage.n_answer_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.n_thought_tokens},
        "total_tokens": usage.n_prompt_tokens + usage.n_answer_tokens,
    })
}

/// Returns the shape of Messages, in which `input_tokens` counts the computed tokens.
pub(crate) fn messages(usage: Usage) -> Json {
    json!({
        "input_tokens": usage.n_prompt_tokens - usage.n_cached_tokens.min(usage.n_prompt_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.n_cached_tokens,
        "cache_read_input_tokens_drive": usage.n_cached_drive_tokens,
        "replayed_turns": usage.n_replayed,
        "output_tokens": usage.n_answer_tokens,
        "output_tokens_details": {"thinking_tokens": usage.n_thought_tokens},
    })
}
