//! `generation_config.json`: a sampler takes the accepted values, and they survive writing and
//! reading again; end tokens ascend.

use moeflux::provider::format::parse_json;
use moeflux::provider::sample::{Sampler, SamplerDefaults};
use moeflux::provider::text::{EndTokens, Tokenizer};
use serde_json::json;

use crate::support::{TempFolder, check_refusal};

pub(crate) fn checker() -> impl FnMut(&[u8]) + Send {
    let folder = TempFolder::new("generation-config");
    folder
        .write("tokenizer.json", br#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#);
    let tokenizer = Tokenizer::open(folder.path(), 1).expect("a tokenizer of one token");
    move |input| check(&folder, &tokenizer, input)
}

fn check(folder: &TempFolder, tokenizer: &Tokenizer, input: &[u8]) {
    folder.write("generation_config.json", input);
    match EndTokens::open(folder.path(), tokenizer) {
        Ok(ends) => assert!(ends.tokens().is_sorted_by(|a, b| a < b)),
        Err(error) => check_refusal(&error),
    }
    let Ok(json) = parse_json(input) else { return };
    let defaults = match SamplerDefaults::from_generation_config(&json) {
        Ok(defaults) => defaults,
        Err(error) => return check_refusal(&error),
    };
    let config = defaults.config(7);
    let again = json!({
        "do_sample": true, "temperature": config.temperature, "top_k": config.top_k,
        "top_p": config.top_p, "min_p": config.min_p,
        "repetition_penalty": config.repetition_penalty,
    });
    let again = SamplerDefaults::from_generation_config(&again).expect("its own values");
    assert_eq!(again.config(7), config);
    let mut sampler = Sampler::new(config, 4).expect("values in their ranges");
    let choice = sampler.sample(&[0.5, -1e4, 3.0, 1e4], &[], None).expect("finite logits");
    assert!(choice.token.0 < 4);
}
