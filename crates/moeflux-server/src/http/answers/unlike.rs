//! The line in the log about long prompts in a row that found almost nothing.
//!
//! **Invariant:** it has text of prompts only if the server logs prompts.

use moeflux::TokenId;
use moeflux_schedule::MissRow;

use crate::http::shared::ModelState;

/// Writes the line with the request that is the last of the row.
pub(crate) fn warn(state: &ModelState, id: &str, row: &MissRow) {
    let MissRow { n_prompts, n_shared, kept, prompt, .. } = row;
    let logs_prompts = state.server.config.log_prompts;
    let text =
        |tokens: &[TokenId]| logs_prompts.then(|| state.served.text.tokenizer().decode(tokens));
    tracing::warn!(
        target: "moeflux::server",
        id = %id,
        n_prompts,
        n_shared,
        kept = text(kept),
        prompt = text(prompt),
        "{}",
        message(*n_prompts, *n_shared)
    );
}

fn message(n_prompts: usize, n_shared: usize) -> String {
    let found = match n_shared {
        0 => "share no first token".to_owned(),
        _ => format!("share at most their first {n_shared} tokens"),
    };
    format!(
        "the last {n_prompts} long prompts {found} with any conversation that is kept: if they \
         continue one, their client changes its instructions, its tools or its history with each \
         request, so that all is read again"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_much_is_shared_and_where_to_look() {
        assert_eq!(
            message(5, 212),
            "the last 5 long prompts share at most their first 212 tokens with any conversation \
             that is kept: if they continue one, their client changes its instructions, its tools \
             or its history with each request, so that all is read again"
        );
        assert!(message(7, 0).starts_with("the last 7 long prompts share no first token with "));
    }
}
