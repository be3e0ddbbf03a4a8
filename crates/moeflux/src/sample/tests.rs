//! Compares the whole chain with hand-computed tables, a naive implementation and expected
//! frequencies.

use super::*;
use crate::sample::candidates::index;

const BANNED: f32 = f32::NEG_INFINITY;

fn config(temperature: f32) -> SamplerConfig {
    SamplerConfig { temperature, ..SamplerConfig::greedy() }
}

fn one(config: &SamplerConfig, logits: &[f32]) -> u32 {
    let mut sampler = Sampler::new(config.clone(), logits.len()).unwrap();
    sampler.sample(logits, &[], None).unwrap().token.0
}

/// Returns every token that occurs in 2,000 draws, ascending.
fn reached(config: &SamplerConfig, logits: &[f32]) -> Vec<u32> {
    let mut sampler = Sampler::new(config.clone(), logits.len()).unwrap();
    let mut tokens: Vec<u32> =
        (0..2_000).map(|_| sampler.sample(logits, &[], None).unwrap().token.0).collect();
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

struct Ban(Vec<usize>);

impl LogitMask for Ban {
    fn apply(&mut self, logits: &mut [f32]) {
        for id in &self.0 {
            logits[*id] = BANNED;
        }
    }
}

#[test]
fn greedy_takes_the_lowest_id_of_equals() {
    assert_eq!(one(&config(0.0), &[1.0, 3.0, 3.0, 2.0]), 1);
    assert_eq!(one(&config(0.0), &[-0.0, 0.0]), 0);
    assert_eq!(one(&config(0.0), &[BANNED, f32::MIN]), 1);
}

#[test]
fn cuts_keep_the_tokens_computed_by_hand() {
    // Probabilities 1/2, 1/4, 1/8, 1/8, in the order of ids 3, 0, 2, 1.
    let logits = [0.25_f32, 0.125, 0.125, 0.5].map(f32::ln);
    let warm = config(1.0);
    assert_eq!(reached(&warm, &logits), [0, 1, 2, 3]);
    assert_eq!(reached(&SamplerConfig { top_k: 3, ..warm.clone() }, &logits), [0, 1, 3]);
    assert_eq!(reached(&SamplerConfig { top_k: 9, ..warm.clone() }, &logits), [0, 1, 2, 3]);
    assert_eq!(reached(&SamplerConfig { top_p: 0.4, ..warm.clone() }, &logits), [3]);
    assert_eq!(reached(&SamplerConfig { top_p: 0.6, ..warm.clone() }, &logits), [0, 3]);
    assert_eq!(reached(&SamplerConfig { top_p: 0.8, ..warm.clone() }, &logits), [0, 1, 3]);
    assert_eq!(reached(&SamplerConfig { top_p: 0.0, ..warm.clone() }, &logits), [3]);
    assert_eq!(reached(&SamplerConfig { min_p: 0.3, ..warm.clone() }, &logits), [0, 3]);
    assert_eq!(reached(&SamplerConfig { min_p: 1.0, ..warm.clone() }, &logits), [3]);
    // After top-k, the two left have 2/3 and 1/3: the best alone reaches 0.6.
    let both = SamplerConfig { top_k: 2, top_p: 0.6, ..warm.clone() };
    assert_eq!(reached(&both, &logits), [3]);
    // At temperature 1/2 the weights are 16, 4, 1, 1 of 22: two reach 0.9, and ratios are squared.
    let cold = SamplerConfig { temperature: 0.5, top_p: 0.9, ..warm.clone() };
    assert_eq!(reached(&cold, &logits), [0, 3]);
    let cold = SamplerConfig { temperature: 0.5, min_p: 0.2, ..warm };
    assert_eq!(reached(&cold, &logits), [0, 3]);
}

#[test]
fn extremes() {
    let logits = [1.0, 1.000_001, 0.5, BANNED];
    assert_eq!(reached(&config(1e-6), &[1.0, 2.0, 0.5]), [1]);
    assert_eq!(reached(&config(1e-6), &logits).len(), 2);
    assert_eq!(reached(&config(f32::MIN_POSITIVE), &logits), [1]);
    assert_eq!(reached(&config(1e6), &logits), [0, 1, 2]);
    assert_eq!(reached(&config(1.0), &[0.0; 5]), [0, 1, 2, 3, 4]);
    assert_eq!(reached(&config(1.0), &[f32::MAX, f32::MIN, f32::MAX]), [0, 2]);
    assert_eq!(one(&config(1.0), &[BANNED, -5.0, BANNED]), 1);
    let off = SamplerConfig { top_k: 100, top_p: 1.0, ..config(1.0) };
    assert_eq!(reached(&off, &logits), [0, 1, 2]);
}

#[test]
fn bias_comes_before_penalties_and_the_mask_is_last() {
    let mut shaped = config(0.0);
    // 1 + 3 = 4, halved to 2, is below 2.5. If penalised first, it would be 3.5 and above 2.5.
    shaped.logit_bias = vec![(TokenId(0), 1.0), (TokenId(0), 2.0)];
    shaped.repetition_penalty = 2.0;
    let mut sampler = Sampler::new(shaped, 3).unwrap();
    let logits = [1.0, 2.5, 0.0];
    let choice = sampler.sample(&logits, &[TokenId(0)], None).unwrap();
    assert_eq!(choice.token, TokenId(1));
    let mut mask = Ban(vec![1]);
    let choice = sampler.sample(&logits, &[TokenId(0)], Some(&mut mask)).unwrap();
    assert_eq!(choice.token, TokenId(0));
    let mut brought_back = config(0.0);
    brought_back.logit_bias = vec![(TokenId(1), 1e6)];
    let mut sampler = Sampler::new(brought_back, 3).unwrap();
    assert_eq!(sampler.sample(&logits, &[], Some(&mut mask)).unwrap().token, TokenId(0));
}

#[test]
fn nothing_to_choose_from_is_an_error() {
    for temperature in [0.0, 1.0] {
        let mut sampler = Sampler::new(config(temperature), 3).unwrap();
        let mut refused = |logits: &[f32], banned: Vec<usize>| {
            let mut mask = Ban(banned);
            sampler.sample(logits, &[], Some(&mut mask)).unwrap_err().to_string()
        };
        assert!(
            refused(&[f32::NAN; 3], vec![]).contains("token 0 of 3 logits (NaN): produced NaN")
        );
        assert!(refused(&[0.0, f32::INFINITY, 0.0], vec![]).contains("token 1 of 3 logits (inf)"));
        assert!(refused(&[BANNED; 3], vec![]).contains("0 of 3 logits are finite before"));
        assert!(refused(&[1.0; 3], vec![0, 1, 2]).contains("3 of 3 logits are finite before"));
    }
    let mut sampler = Sampler::new(config(1.0), 0).unwrap();
    assert!(sampler.sample(&[], &[], None).is_err());
}

struct Wild;

impl LogitMask for Wild {
    fn apply(&mut self, logits: &mut [f32]) {
        logits[0] = f32::NAN;
        logits[1] = f32::INFINITY;
    }
}

#[test]
fn a_mask_that_writes_nonsense_forbids_nan_and_keeps_infinity_finite() {
    for temperature in [0.0, 1.0] {
        let mut sampler = Sampler::new(config(temperature), 3).unwrap();
        for _ in 0..50 {
            let choice = sampler.sample(&[1.0, 1.0, 1.0], &[], Some(&mut Wild)).unwrap();
            assert_eq!(choice.token, TokenId(1));
        }
    }
}

#[test]
fn a_bias_outside_of_the_vocabulary_is_refused() {
    let wrong = SamplerConfig { logit_bias: vec![(TokenId(3), 1.0)], ..config(0.0) };
    let error = Sampler::new(wrong, 3).unwrap_err().to_string();
    assert_eq!(error, "logit_bias names token 3, but the vocabulary has 3 tokens");
}

#[test]
fn logprobs_are_the_models_own() {
    let logits = [0.25_f32, 0.125, 0.125, 0.5].map(f32::ln);
    let mut shaped = SamplerConfig { n_logprobs: Some(3), ..config(0.0) };
    shaped.logit_bias = vec![(TokenId(1), 50.0)];
    let mut sampler = Sampler::new(shaped, 4).unwrap();
    let choice = sampler.sample(&logits, &[], None).unwrap();
    assert_eq!(choice.token, TokenId(1));
    let close = |got: f32, share: f32| assert!((got - share.ln()).abs() < 1e-6, "{got} {share}");
    close(choice.logprob.unwrap(), 0.125);
    let tokens: Vec<u32> = choice.top.iter().map(|(token, _)| token.0).collect();
    assert_eq!(tokens, [3, 0, 1]);
    for ((_, logprob), share) in choice.top.iter().zip([0.5, 0.25, 0.125]) {
        close(*logprob, share);
    }
    let mut plain = Sampler::new(config(0.0), 4).unwrap();
    let choice = plain.sample(&logits, &[], None).unwrap();
    assert_eq!((choice.logprob, choice.top), (None, [].as_slice()));
}

#[test]
fn a_seed_replays_and_seeds_differ() {
    let logits: Vec<f32> = (0..50_u8).map(|id| f32::from(id) * 0.01).collect();
    let run = |seed| -> Vec<u32> {
        let mut sampler = Sampler::new(SamplerConfig { seed, ..config(1.0) }, 50).unwrap();
        (0..20).map(|_| sampler.sample(&logits, &[], None).unwrap().token.0).collect()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn frequencies_follow_the_probabilities() {
    let shares = [0.4_f64, 0.3, 0.2, 0.07, 0.03];
    #[expect(clippy::cast_possible_truncation, reason = "rounds")]
    let logits: Vec<f32> = shares.iter().map(|share| share.ln() as f32).collect();
    let n_draws = 100_000;
    let mut counts = [0_u32; 5];
    let mut sampler = Sampler::new(SamplerConfig { seed: 42, ..config(1.0) }, 5).unwrap();
    for _ in 0..n_draws {
        counts[index(sampler.sample(&logits, &[], None).unwrap().token)] += 1;
    }
    let chi_square: f64 = counts
        .iter()
        .zip(shares)
        .map(|(count, share)| {
            let expected = share * f64::from(n_draws);
            (f64::from(*count) - expected).powi(2) / expected
        })
        .sum();
    // With 4 degrees of freedom, one correct generator in 1,000 exceeds 18.5.
    assert!(chi_square < 18.5, "{chi_square}: {counts:?}");
}

/// A textbook implementation of the chain: sorts everything, then filters.
fn naive(config: &SamplerConfig, logits: &[f32], unit: f64) -> u32 {
    let scaled = logits.iter().map(|logit| f64::from(*logit) / f64::from(config.temperature));
    let mut sorted: Vec<(f64, u32)> =
        scaled.zip(0..).filter(|(logit, _)| logit.is_finite()).collect();
    sorted.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if config.top_k > 0 {
        sorted.truncate(config.top_k);
    }
    let best = sorted[0].0;
    let mut shares: Vec<(f64, u32)> =
        sorted.iter().map(|(logit, id)| ((logit - best).exp(), *id)).collect();
    let total: f64 = shares.iter().map(|(share, _)| share).sum();
    let mut before = 0.0;
    shares.retain(|(share, _)| {
        let kept = config.top_p >= 1.0 || before == 0.0 || before < f64::from(config.top_p);
        before += share / total;
        kept
    });
    shares.retain(|(share, _)| *share >= f64::from(config.min_p));
    let total: f64 = shares.iter().map(|(share, _)| share).sum();
    let mut reached = 0.0;
    for (share, id) in &shares {
        reached += share;
        if unit * total < reached {
            return *id;
        }
    }
    shares[shares.len() - 1].1
}

#[test]
fn equals_the_naive_chain_on_random_inputs() {
    let mut random = SplitMix64::new(0xfeed);
    for case in 0..500 {
        #[expect(clippy::cast_possible_truncation, reason = "rounds")]
        let mut unit = || random.next_f64() as f32;
        let vocab = [3_usize, 40, 700, 3_000, 9_000][case % 5];
        // Coarse steps produce ties; some entries are masked.
        let logits: Vec<f32> = (0..vocab)
            .map(|_| if unit() < 0.1 { BANNED } else { (unit() * 40.0).round() / 4.0 })
            .collect();
        if logits.iter().all(|logit| *logit == BANNED) {
            continue;
        }
        let config = SamplerConfig {
            temperature: 0.1 + unit() * 2.0,
            top_k: if unit() < 0.5 { 0 } else { 1 + case % 300 },
            top_p: if unit() < 0.3 { 1.0 } else { unit() },
            min_p: if unit() < 0.5 { 0.0 } else { unit() * 0.2 },
            seed: u64::try_from(case).unwrap(),
            ..SamplerConfig::greedy()
        };
        let mut sampler = Sampler::new(config.clone(), vocab).unwrap();
        let mut units = SplitMix64::new(config.seed);
        for _ in 0..20 {
            let token = sampler.sample(&logits, &[], None).unwrap().token.0;
            assert_eq!(token, naive(&config, &logits, units.next_f64()), "case {case} {config:?}");
        }
    }
}

#[test]
fn scratch_does_not_grow_after_the_first_token() {
    let logits: Vec<f32> = (0..2_000_u16).map(|id| f32::from(id % 97) * 0.1).collect();
    let full = SamplerConfig {
        top_p: 0.9,
        min_p: 0.01,
        frequency_penalty: 0.1,
        n_logprobs: Some(5),
        ..config(1.0)
    };
    let mut sampler = Sampler::new(full, logits.len()).unwrap();
    let mut history = Vec::new();
    let mut addresses = Vec::new();
    for _ in 0..50 {
        let choice = sampler.sample(&logits, &history, None).unwrap();
        addresses.push(choice.top.as_ptr());
        history.push(choice.token);
    }
    assert!(addresses[1..].iter().all(|address| *address == addresses[0]));
}

/// Returns the best `n` logits as a device would: best first, equal ones by ascending id.
fn best_of(logits: &[f32], n: usize) -> Vec<(TokenId, f32)> {
    let mut best: Vec<(TokenId, f32)> =
        (0..).zip(logits).map(|(id, logit)| (TokenId(id), *logit)).collect();
    best.sort_by(|left, right| right.1.partial_cmp(&left.1).unwrap());
    best.truncate(n);
    best
}

#[test]
#[expect(clippy::cast_possible_truncation, reason = "any logits will do")]
fn the_best_logits_are_enough_where_claimed() {
    let mut random = SplitMix64::new(7);
    let cuts = [(1, 1.0, 0.0), (20, 0.95, 0.0), (64, 0.3, 0.1), (64, 1.0, 0.6)];
    let warm = cuts.map(|(top_k, top_p, min_p)| SamplerConfig {
        seed: 3,
        ..SamplerConfig { top_k, top_p, min_p, ..config(0.7) }
    });
    for config in warm.into_iter().chain([config(0.0)]) {
        let mut of_all = Sampler::new(config.clone(), 300).unwrap();
        let mut of_best = of_all.clone();
        let n_best = of_all.n_best_needed().unwrap();
        for round in 0..50 {
            // Few distinct values, so that the limit falls between equal ones, and some forbidden
            // tokens.
            let logits: Vec<f32> = (0..300)
                .map(|_| match (random.next_f64() * 12.0).floor() {
                    0.0 => BANNED,
                    value if round % 2 == 0 => value as f32 / 4.0,
                    _ => (random.next_f64() * 9.0) as f32,
                })
                .collect();
            let expected = of_all.sample(&logits, &[], None).unwrap().token;
            let chosen = of_best.sample_best(&best_of(&logits, n_best)).unwrap().token;
            assert_eq!(chosen, expected, "{config:?}, round {round}");
        }
    }
}

#[test]
fn settings_that_need_all_logits_are_recognised() {
    let needed = |config: SamplerConfig| Sampler::new(config, 9).unwrap().n_best_needed();
    assert_eq!(needed(config(0.0)), Some(1));
    assert_eq!(needed(SamplerConfig { top_k: 5, ..config(1.0) }), Some(5));
    assert_eq!(needed(config(1.0)), None);
    assert_eq!(needed(SamplerConfig { top_p: 0.9, ..config(1.0) }), None);
    assert_eq!(needed(SamplerConfig { presence_penalty: 1.0, ..config(0.0) }), None);
    assert_eq!(needed(SamplerConfig { n_logprobs: Some(0), ..config(0.0) }), None);
    assert_eq!(needed(SamplerConfig { logit_bias: vec![(TokenId(1), 1.0)], ..config(0.0) }), None);
}

#[test]
fn broken_logits_among_the_best_are_named() {
    let mut sampler = Sampler::new(config(0.0), 9).unwrap();
    let error = sampler.sample_best(&[(TokenId(4), f32::NAN)]).unwrap_err().to_string();
    assert!(error.contains("token 4 of 9 logits (NaN): produced"), "{error}");
    let error = sampler.sample_best(&[(TokenId(4), BANNED)]).unwrap_err().to_string();
    assert!(error.contains("no token is left"), "{error}");
}
