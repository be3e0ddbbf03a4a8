//! The list of models, in a form that clients of all dialects can read.
//!
//! **Invariant:** each entry has the fields of `OpenAI`'s list and those of Anthropic's.

use serde_json::{Value as Json, json};

const SECONDS_PER_DAY: u64 = 86_400;

/// A served model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// The name for clients.
    pub id: String,
    /// The time when it was opened, in seconds since 1970.
    pub created_s: u64,
    /// Maximum number of tokens of a prompt and its answer.
    pub n_context: usize,
}

impl ModelEntry {
    /// Returns the response to a request for one model.
    #[must_use]
    pub fn json(&self) -> Json {
        json!({
            "id": self.id,
            "object": "model",
            "created": self.created_s,
            "owned_by": "moeflux",
            "max_model_len": self.n_context,
            "type": "model",
            "display_name": self.id,
            "created_at": date_time(self.created_s),
            "lifecycle": "active",
            "max_input_tokens": self.n_context,
            "max_tokens": self.n_context,
        })
    }
}

/// Returns the response to a request for the list.
#[must_use]
pub fn list(models: &[ModelEntry]) -> Json {
    let ids = || models.iter().map(|model| model.id.as_str());
    json!({
        "object": "list",
        "data": models.iter().map(ModelEntry::json).collect::<Vec<_>>(),
        "has_more": false,
        "first_id": ids().next(),
        "last_id": ids().next_back(),
    })
}

/// Formats a time as in RFC 3339. The years of the Gregorian calendar are counted in eras of 400,
/// from the first of March, so that leap days come last.
fn date_time(seconds: u64) -> String {
    let days = seconds / SECONDS_PER_DAY + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - (day_of_era / 1_460) + (day_of_era / 36_524) - (day_of_era / 146_096)) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_442_432, "2026-11-23T14:00:32Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date_time(seconds), expected);
        }
    }

    #[test]
    fn a_list_suits_both_kinds_of_clients() {
        let model = ModelEntry { id: "m".into(), created_s: 0, n_context: 4096 };
        let found = list(&[model]);
        assert_eq!((&found["first_id"], &found["last_id"]), (&json!("m"), &json!("m")));
        assert_eq!(found["data"][0]["max_model_len"], 4096);
        assert_eq!(list(&[])["first_id"], Json::Null);
    }
}
