//! Limits on the tokens of an answer's thoughts.
//!
//! **Invariant:** a number given by a client takes precedence over one derived from an effort.

use crate::failure::Failure;
use crate::request::fields::Fields;
use crate::request::sampling::N_TOKENS_MAX;

/// Maximum number of thought tokens by effort; larger efforts have no limit. Templates that support
/// efforts receive it as well. Agents send `medium` by default, so its limit is one that only
/// endless thoughts reach.
const EFFORTS: [(&str, usize); 4] =
    [("none", 0), ("minimal", 512), ("low", 2_048), ("medium", 8_192)];

/// Returns the limit for an effort; `None` if it has none.
pub(crate) fn limit_of(effort: &str) -> Option<usize> {
    EFFORTS.iter().find(|(name, _)| *name == effort).map(|(_, n_tokens)| *n_tokens)
}

/// Takes the limit that a client gives as a number, under either name; the smaller if both are
/// given.
pub(crate) fn limit(fields: &mut Fields) -> Result<Option<usize>, Failure> {
    let ours = fields.count("max_thinking_tokens", 0..=N_TOKENS_MAX)?;
    let other = fields.count("thinking_budget", 0..=N_TOKENS_MAX)?;
    Ok(ours.into_iter().chain(other).min())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_of_either_name_are_taken() {
        let found = |json| {
            let mut fields = Fields::of(String::new(), json).unwrap();
            limit(&mut fields).map_err(|failure| failure.message)
        };
        assert_eq!(found(json!({})), Ok(None));
        assert_eq!(found(json!({"thinking_budget": 9})), Ok(Some(9)));
        assert_eq!(found(json!({"max_thinking_tokens": 7, "thinking_budget": 9})), Ok(Some(7)));
        let problem = found(json!({"thinking_budget": -1})).unwrap_err();
        assert!(problem.starts_with("`thinking_budget`: expected a whole number from 0"));
    }

    #[test]
    fn only_small_efforts_have_limits() {
        let limits =
            ["none", "minimal", "low", "medium", "high", "xhigh", "max", "x"].map(limit_of);
        assert_eq!(limits, [Some(0), Some(512), Some(2_048), Some(8_192), None, None, None, None]);
    }
}
