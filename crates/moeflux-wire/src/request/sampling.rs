//! Sampling fields that the dialects share.
//!
//! **Invariant:** every number is within the sampler's own limits, so the engine can only refuse
//! unknown tokens later.

use moeflux::sample::PENALTY_MAX;
use moeflux::{StopStrings, TokenId};
use serde_json::Value as Json;

use crate::failure::Failure;
use crate::request::Sampling;
use crate::request::fields::{Fields, element, integer, number_in, wrong};

/// Maximum number of answers to a prompt, as in the API of `OpenAI`.
pub(crate) const N_ANSWERS_MAX: usize = 128;
/// Maximum number of requested tokens: far beyond any context, and a 32-bit number.
pub(crate) const N_TOKENS_MAX: usize = 1 << 31;
/// Maximum number of alternatives with log-probabilities per token, as in the API of `OpenAI`,
/// because they are written out for every token.
pub(crate) const N_LOGPROBS_MAX: usize = 20;
/// Maximum value of `top_k`; larger values would keep every token.
const TOP_K_MAX: usize = 1 << 31;
/// Maximum number of entries in `logit_bias`: the sampler's own limit.
const N_BIASES_MAX: usize = 65_536;

/// Fields that would change an answer but are unsupported, with advice.
const REFUSED: [(&str, &str); 11] = [
    ("json_schema", "is not supported: use `response_format`"),
    ("min_tokens", LEAVE_OUT),
    ("ignore_eos", LEAVE_OUT),
    ("stop_token_ids", "is not supported: use `stop`"),
    ("bad_words", "is not supported: use `logit_bias`"),
    ("allowed_token_ids", "is not supported: use `logit_bias`"),
    ("use_beam_search", LEAVE_OUT),
    ("prompt_logprobs", "is not supported: use `echo` of /v1/completions"),
    ("prompt_embeds", "is not supported: send text or tokens"),
    ("functions", "is not supported: use `tools`"),
    ("mm_processor_kwargs", "is not supported: this server takes text"),
];
const LEAVE_OUT: &str = "is not supported: leave it out";

/// Takes the sampling fields, except those for log-probabilities, which differ between dialects.
pub(crate) fn sampling(fields: &mut Fields) -> Result<Sampling, Failure> {
    for (key, reason) in REFUSED {
        fields.refuse(key, reason)?;
    }
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0..=PENALTY_MAX)?,
        top_k: top_k(fields)?,
        top_p: fields.number("top_p", 0.0..=1.0)?,
        min_p: fields.number("min_p", 0.0..=1.0)?,
        repetition_penalty: fields.number("repetition_penalty", 1.0 / PENALTY_MAX..=PENALTY_MAX)?,
        frequency_penalty: fields.number("frequency_penalty", -PENALTY_MAX..=PENALTY_MAX)?,
        presence_penalty: fields.number("presence_penalty", -PENALTY_MAX..=PENALTY_MAX)?,
        logit_bias: logit_bias(fields)?,
        seed: seed(fields)?,
        n_logprobs: None,
    })
}

/// Takes `top_k`. Some clients send -1 for "off".
fn top_k(fields: &mut Fields) -> Result<Option<usize>, Failure> {
    match fields.take("top_k") {
        None => Ok(None),
        Some(value) if value.as_i64() == Some(-1) => Ok(Some(0)),
        Some(value) => {
            let number = integer(&value).and_then(|it| usize::try_from(it).ok());
            let number = number.filter(|it| *it <= TOP_K_MAX);
            let wanted = format!("a whole number from 0 to {TOP_K_MAX}, or -1");
            let problem = || wrong(&fields.path("top_k"), &wanted, &value);
            number.map(Some).ok_or_else(problem)
        }
    }
}

fn seed(fields: &mut Fields) -> Result<Option<u64>, Failure> {
    let Some(value) = fields.take("seed") else { return Ok(None) };
    let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
    seed.map(Some).ok_or_else(|| wrong(&fields.path("seed"), "a whole number of 64 bits", &value))
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(TokenId, f32)>, Failure> {
    let path = fields.path("logit_bias");
    let biases = fields.map("logit_bias")?;
    if biases.len() > N_BIASES_MAX {
        let problem = format!("{} entries are too many; the limit is {N_BIASES_MAX}", biases.len());
        return Err(Failure::invalid(&path, problem));
    }
    let bias = |(token, bias): (&String, &Json)| {
        let path = format!("{path}.{token}");
        let id = token.parse().map_err(|_| Failure::invalid(&path, "is not the id of a token"))?;
        Ok((TokenId(id), number_in(&path, bias, -PENALTY_MAX..=PENALTY_MAX)?))
    };
    biases.iter().map(bias).collect()
}

/// Takes the strings that end an answer: one, or a list.
pub(crate) fn stops(fields: &mut Fields, key: &str) -> Result<StopStrings, Failure> {
    let path = fields.path(key);
    let strings = match fields.take(key) {
        None => Vec::new(),
        Some(Json::String(one)) => vec![one],
        Some(Json::Array(values)) => {
            let string = |(index, value)| match value {
                Json::String(text) => Ok(text),
                other => Err(wrong(&element(&path, index), "a string", &other)),
            };
            values.into_iter().enumerate().map(string).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong(&path, "a string or a list of strings", &other)),
    };
    StopStrings::new(strings).map_err(|error| Failure::invalid(&path, error))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(json: Json) -> Fields {
        Fields::of(String::new(), json).unwrap()
    }

    fn refused(json: Json) -> String {
        sampling(&mut fields(json)).unwrap_err().message
    }

    #[test]
    fn values_are_taken() {
        let given = json!({"temperature": 0, "top_k": -1, "top_p": 0.5, "min_p": 0.1, "seed": -1,
            "logit_bias": {"7": -100, "8": 0.5}, "json_schema": null, "min_tokens": 0});
        let found = sampling(&mut fields(given)).unwrap();
        assert_eq!(found.temperature, Some(0.0));
        assert_eq!((found.top_k, found.top_p, found.min_p), (Some(0), Some(0.5), Some(0.1)));
        assert_eq!(found.seed, Some(u64::MAX));
        assert_eq!(found.logit_bias, [(TokenId(7), -100.0), (TokenId(8), 0.5)]);
    }

    #[test]
    fn values_beyond_their_limits_are_refused_by_name() {
        let expected = "`temperature`: expected a number from 0 to 1000000, got -1";
        assert_eq!(refused(json!({"temperature": -1})), expected);
        assert!(refused(json!({"top_p": 1.5})).starts_with("`top_p`: expected a number from 0"));
        assert!(refused(json!({"top_k": -2})).contains("from 0 to 2147483648, or -1, got -2"));
        assert!(refused(json!({"seed": 1.5})).starts_with("`seed`: expected a whole number"));
        assert!(
            refused(json!({"logit_bias": {"x": 1}})).starts_with("`logit_bias.x`: is not the id")
        );
        assert!(refused(json!({"logit_bias": {"4294967296": 1}})).contains("is not the id"));
        assert!(refused(json!({"logit_bias": {"5": "a"}})).starts_with("`logit_bias.5`: expected"));
        for (key, _) in REFUSED {
            let problem = refused(json!({key: "x"}));
            assert!(problem.starts_with(&format!("`{key}`: is not supported")), "{problem}");
        }
        let many = (0..=N_BIASES_MAX).map(|id| (id.to_string(), json!(1))).collect();
        assert!(refused(json!({"logit_bias": Json::Object(many)})).contains("65537 entries"));
    }

    #[test]
    fn stops_are_one_or_many() {
        let found = |stop: Json| {
            stops(&mut fields(json!({"stop": stop})), "stop").map_err(|failure| failure.message)
        };
        assert_eq!(found(Json::Null), Ok(StopStrings::default()));
        assert_eq!(found(json!("a")), Ok(StopStrings::new(vec!["a".into()]).unwrap()));
        assert_eq!(found(json!(["a"])), found(json!("a")));
        assert_eq!(found(json!([5])), Err("`stop[0]`: expected a string, got 5".into()));
        assert!(found(json!("")).unwrap_err().starts_with("`stop`: stop string 1 has 0 bytes"));
        assert!(found(json!(vec!["a"; 17])).unwrap_err().contains("the limit is 16"));
    }
}
