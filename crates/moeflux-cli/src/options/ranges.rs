//! Parsers of option values with a range. If one fails, clap prints its error and exits with 2.
//!
//! **Invariant:** a parser accepts no value that the library refuses. This module is independent of
//! models.

use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::RangeInclusive;
use std::time::Duration;

use moeflux::provider::config::N_ROWS_MAX;
use moeflux::provider::sample::{LOGPROBS_MAX, PENALTY_MAX};
use moeflux::provider::text::STOP_STRING_BYTES_MAX;
use moeflux::{Budget, TokenId};

use crate::output::size;
use crate::system::network::{Delay, Network};

/// A larger number of threads is a typo on any machine.
const N_THREADS_MAX: usize = 4096;

/// Upper bound on slots: no model has more experts.
const N_SLOTS_MAX: usize = 1 << 24;

/// A smaller size is a typo: a checkpoint would have millions of files.
const SHARD_BYTES_MIN: u64 = 1 << 20;

/// A drive reads less than this too quickly to be measured.
const PROBE_BYTES_MIN: u64 = 4 << 20;

/// A larger number of runs is a typo.
const N_RUNS_MAX: usize = 10_000;

/// Bounds on rates: slower than any drive, and faster than any memory.
const GBPS_MIN: f32 = 0.001;
const GBPS_MAX: f32 = 100_000.0;

/// The result of a parser.
type ParseResult<T> = Result<T, String>;

/// Parses `--threads`.
pub(crate) fn threads(text: &str) -> ParseResult<NonZeroUsize> {
    count(text, N_THREADS_MAX)
}

/// Upper bound on the machines: more are not supported.
const N_RANKS_MAX: usize = 256;

/// Parses `--ranks`.
pub(crate) fn ranks(text: &str) -> ParseResult<NonZeroUsize> {
    count(text, N_RANKS_MAX)
}

/// Parses one share of `--shares`.
pub(crate) fn rank_share(text: &str) -> ParseResult<NonZeroU32> {
    let share = count(text, 1 << 20)?;
    NonZeroU32::try_from(share).map_err(|error| error.to_string())
}

/// Parses `--rank-timeout`; more than an hour is a typo.
pub(crate) fn rank_timeout(text: &str) -> ParseResult<Duration> {
    let seconds = count(text, 3600)?;
    Ok(Duration::from_secs(seconds.get() as u64))
}

/// Parses `--rank-delay`.
pub(crate) fn rank_delay(text: &str) -> ParseResult<Delay> {
    Network::parse(text).map(|network| network.delay())
}

/// Parses `--connections`.
pub(crate) fn connections(text: &str) -> ParseResult<NonZeroUsize> {
    count(text, moeflux_hub::N_CONNECTIONS_MAX)
}

/// Parses `--chunk`.
pub(crate) fn chunk(text: &str) -> ParseResult<NonZeroUsize> {
    count(text, N_ROWS_MAX)
}

/// A larger number of sessions or jobs is a typo.
const N_JOBS_MAX: usize = 65_536;

/// Parses `--sessions`.
pub(crate) fn sessions(text: &str) -> ParseResult<NonZeroUsize> {
    count(text, N_JOBS_MAX)
}

/// Parses `--queue`.
pub(crate) fn queue(text: &str) -> ParseResult<usize> {
    if text == "0" { Ok(0) } else { sessions(text).map(NonZeroUsize::get) }
}

/// Upper bound on a time, a year: a longer one is a typo.
const SECONDS_MAX: u64 = 366 * 24 * 3600;

/// Parses a time of at least one second: `90`, `90s`, `10m`, `2h`, `30d`.
pub(crate) fn time(text: &str) -> ParseResult<Duration> {
    let text = text.trim();
    let (number, factor) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3600),
        Some((at, 'd')) => (&text[..at], 24 * 3600),
        _ => (text, 1),
    };
    let seconds = number.parse::<u64>().ok().and_then(|it| it.checked_mul(factor));
    match seconds.filter(|it| (1..=SECONDS_MAX).contains(it)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => {
            Err("write a number of seconds, or one with s, m, h or d (90s, 10m, 2h, 30d)"
                .to_owned())
        }
    }
}

/// A smaller cache is a mistake: a short conversation takes more.
const CACHE_BYTES_MIN: u64 = 1 << 20;

/// Every process is larger: a smaller value probably lacks its unit.
const BUDGET_BYTES_MIN: u64 = 1 << 20;

/// Parses `--memory`.
pub(crate) fn budget(text: &str) -> ParseResult<Budget> {
    if text == "auto" {
        return Ok(Budget::Auto);
    }
    memory(text).map(Budget::Bytes)
}

/// Parses `--ram`, and `--memory` without `auto`.
pub(crate) fn memory(text: &str) -> ParseResult<u64> {
    let n_bytes = size::parse(text)?;
    if n_bytes < BUDGET_BYTES_MIN {
        let number = text.trim().trim_end_matches(|it: char| !it.is_ascii_digit());
        let meant = if n_bytes == 0 { "24" } else { number };
        return Err(format!(
            "{n_bytes} bytes are too few for any model; for gigabytes, write {meant}G"
        ));
    }
    Ok(n_bytes)
}

/// Parses `--cache-size` and `--cache-writes-per-day`.
pub(crate) fn cache_bytes(text: &str) -> ParseResult<u64> {
    match size::parse(text)? {
        n_bytes if n_bytes < CACHE_BYTES_MIN => {
            Err(format!("{n_bytes} bytes are too few for a conversation; for gigabytes, write 32G"))
        }
        n_bytes => Ok(n_bytes),
    }
}

/// Parses `--keep-memory`: 0 keeps nothing.
pub(crate) fn kept_bytes(text: &str) -> ParseResult<u64> {
    if text.trim() == "0" { Ok(0) } else { memory(text) }
}

/// Parses `--slots`.
pub(crate) fn slots(text: &str) -> ParseResult<NonZeroUsize> {
    count(text, N_SLOTS_MAX)
}

/// Parses `--repeat`.
pub(crate) fn repeat(text: &str) -> ParseResult<NonZeroUsize> {
    count(text, N_RUNS_MAX)
}

/// Parses `--temp`.
pub(crate) fn temperature(text: &str) -> ParseResult<f32> {
    number(text, 0.0..=PENALTY_MAX)
}

/// Parses a probability.
pub(crate) fn share(text: &str) -> ParseResult<f32> {
    number(text, 0.0..=1.0)
}

/// Parses a divisor of logits.
pub(crate) fn factor(text: &str) -> ParseResult<f32> {
    number(text, 1.0 / PENALTY_MAX..=PENALTY_MAX)
}

/// Parses a rate in GB/s, 10^9 bytes.
pub(crate) fn gbps(text: &str) -> ParseResult<f64> {
    number(text, GBPS_MIN..=GBPS_MAX).map(f64::from)
}

/// Parses an addend to logits.
pub(crate) fn penalty(text: &str) -> ParseResult<f32> {
    number(text, -PENALTY_MAX..=PENALTY_MAX)
}

/// Parses `--logit-bias`.
pub(crate) fn bias(text: &str) -> ParseResult<(TokenId, f32)> {
    let (token, bias) = text.split_once('=').ok_or("write TOKEN_ID=NUMBER, as in 17=-2.5")?;
    Ok((token_id(token)?, penalty(bias)?))
}

/// Parses a token id, optionally surrounded by blanks, as in lists.
pub(crate) fn token_id(text: &str) -> ParseResult<TokenId> {
    let trimmed = text.trim();
    let parsed = trimmed.parse().map(TokenId);
    parsed.map_err(|_| format!("token id `{trimmed}`: give a number from 0 to {}", u32::MAX))
}

/// Parses `--logprobs`.
pub(crate) fn logprobs(text: &str) -> ParseResult<usize> {
    let parsed = text.parse().ok().filter(|n| *n <= LOGPROBS_MAX);
    parsed.ok_or_else(|| format!("give a number from 0 to {LOGPROBS_MAX}"))
}

/// Parses `--stop`.
pub(crate) fn stop(text: &str) -> ParseResult<String> {
    if (1..=STOP_STRING_BYTES_MAX).contains(&text.len()) {
        return Ok(text.to_owned());
    }
    Err(format!("it has {} bytes: give 1 to {STOP_STRING_BYTES_MAX}", text.len()))
}

/// Parses `--shard-size`.
pub(crate) fn shard_size(text: &str) -> ParseResult<u64> {
    let n_bytes = size::parse(text)?;
    if n_bytes < SHARD_BYTES_MIN {
        return Err(format!("files of {n_bytes} bytes are too small: give 1M or more"));
    }
    Ok(n_bytes)
}

/// Parses `--file-size` of a drive's measurement.
pub(crate) fn probe_size(text: &str) -> ParseResult<u64> {
    let n_bytes = size::parse(text)?;
    if n_bytes < PROBE_BYTES_MIN {
        return Err(format!(
            "a file of {n_bytes} bytes is too small to measure a drive: give 4M or more"
        ));
    }
    Ok(n_bytes)
}

/// Parses a number of tokens, at least one. The upper limit depends on the model.
pub(crate) fn tokens(text: &str) -> ParseResult<NonZeroUsize> {
    text.parse().map_err(|_| "give a number of tokens, 1 or more".to_owned())
}

/// Parses a number that may be 0, without an upper limit.
pub(crate) fn whole(text: &str) -> ParseResult<usize> {
    text.parse().map_err(|_| "give a whole number, 0 or more".to_owned())
}

/// Parses `--seed`.
pub(crate) fn seed(text: &str) -> ParseResult<u64> {
    text.parse().map_err(|_| format!("give a whole number from 0 to {}", u64::MAX))
}

/// Parses `--port`.
pub(crate) fn port(text: &str) -> ParseResult<u16> {
    text.parse().map_err(|_| format!("give a whole number from 0 to {}", u16::MAX))
}

fn count(text: &str, max: usize) -> ParseResult<NonZeroUsize> {
    let parsed = text.parse::<NonZeroUsize>().ok().filter(|n| n.get() <= max);
    parsed.ok_or_else(|| format!("give a number from 1 to {max}"))
}

fn number(text: &str, range: RangeInclusive<f32>) -> ParseResult<f32> {
    // NaN is in no range.
    let parsed = text.parse().ok().filter(|n| range.contains(n));
    parsed.ok_or_else(|| format!("give a number from {} to {}", range.start(), range.end()))
}

/// Parses the origin of a web page as browsers write it, or `*` for all.
pub(crate) fn origin(text: &str) -> ParseResult<String> {
    let rest = text.split_once("://").map(|(_, rest)| rest);
    match rest.is_some_and(|rest| !rest.is_empty() && !rest.contains('/')) || text == "*" {
        true => Ok(text.to_owned()),
        false => Err("write SCHEME://HOST[:PORT] without a path, or *".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_accepted_and_errors_state_the_range() {
        assert_eq!(temperature("0"), Ok(0.0));
        assert_eq!(share("1"), Ok(1.0));
        assert!(origin("http://localhost:3000").is_ok() && origin("*").is_ok());
        assert!(origin("localhost").is_err() && origin("http://a/b").is_err());
        assert_eq!(penalty("-1000000"), Ok(-1e6));
        assert_eq!(threads("4096").map(NonZeroUsize::get), Ok(4096));
        assert_eq!(chunk("65536").map(NonZeroUsize::get), Ok(65536));
        assert_eq!(bias("17=-2.5"), Ok((TokenId(17), -2.5)));
        assert_eq!(token_id(" 17 "), Ok(TokenId(17)));
        assert_eq!(shard_size("1M"), Ok(1 << 20));
        for text in ["-0.1", "nan", "inf", "1e7", "warm", ""] {
            assert_eq!(temperature(text), Err("give a number from 0 to 1000000".to_owned()));
        }
        for text in ["0", "65537", "-1", "1.5"] {
            assert_eq!(chunk(text), Err("give a number from 1 to 65536".to_owned()));
        }
        for text in ["0", "-1", "1.5", "many", ""] {
            assert_eq!(tokens(text), Err("give a number of tokens, 1 or more".to_owned()));
        }
        for text in ["-3", "1.5", "many", ""] {
            assert_eq!(whole(text), Err("give a whole number, 0 or more".to_owned()));
            let error = token_id(text).unwrap_err();
            assert!(error.ends_with("give a number from 0 to 4294967295"), "{error}");
        }
        assert_eq!((whole("0"), tokens("1").map(NonZeroUsize::get)), (Ok(0), Ok(1)));
        assert!(factor("0").is_err() && share("1.1").is_err() && penalty("2e6").is_err());
        assert!(bias("5=nan").is_err() && bias("5").is_err() && bias("-5=1").is_err());
        assert!(logprobs("1001").is_err() && stop("").is_err() && shard_size("0").is_err());
    }
}
