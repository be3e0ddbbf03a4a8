//! The time that ranks of an MPI launcher take to exchange values.
//!
//! **Invariant:** all ranks measure the same exchanges in the same order, before anything else.

use std::time::Duration;

use moeflux::Result;
use moeflux::provider::ranks::RankGroup;
use serde_json::{Value, json};

use crate::output::size::binary;
use crate::system::network::{Cluster, Network};

/// Bytes of an exchange, over all ranks.
const SIZES: [u32; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];

/// Exchanges measured for each size.
const N_TIMES: usize = 200;

/// The times of exchanges of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ExchangeTimes {
    n_bytes: u32,
    median: Duration,
    /// The 99th percentile.
    last: Duration,
}

/// The exchanges of all sizes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exchanges {
    hosts: Vec<String>,
    by_size: Vec<ExchangeTimes>,
}

/// Measures together with all other ranks.
///
/// # Errors
///
/// [`moeflux::Error::Rank`] if an exchange fails.
pub(crate) fn measure(group: &RankGroup) -> Result<Exchanges> {
    let by_size = SIZES.map(|n_bytes| {
        let mut times = group.time_exchanges(n_bytes as usize, N_TIMES)?;
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        Ok(ExchangeTimes { n_bytes, median: at(50), last: at(99) })
    });
    let by_size = by_size.into_iter().collect::<Result<_>>()?;
    Ok(Exchanges { hosts: group.topology().hosts, by_size })
}

impl Exchanges {
    /// Returns the network for `plan`.
    fn network(&self) -> Network {
        let [first, .., last] = &*self.by_size else { unreachable!("there are five sizes") };
        let ends = [first, last].map(|it| (f64::from(it.n_bytes), it.median));
        Cluster::network_of(u32::try_from(self.hosts.len()).unwrap_or(u32::MAX), ends)
    }

    /// Returns the figures as JSON.
    pub(super) fn json(&self) -> Value {
        let exchange = |it: &ExchangeTimes| {
            json!({
                "bytes": it.n_bytes,
                "median_s": it.median.as_secs_f64(),
                "p99_s": it.last.as_secs_f64(),
            })
        };
        json!({
            "hosts": self.hosts,
            "exchanges": self.by_size.iter().map(exchange).collect::<Vec<_>>(),
            "network": self.network().option(),
        })
    }

    /// Returns the figures as lines of text.
    pub(super) fn lines(&self) -> Vec<String> {
        let us = |time: Duration| format!("{:.0} us", 1e6 * time.as_secs_f64());
        let mut lines = vec![format!("ranks: {}, on {}", self.hosts.len(), self.hosts.join(", "))];
        lines.push(format!("  {:<24}{:>12}{:>18}", "exchange of", "median", "99 of 100 within"));
        lines.extend(self.by_size.iter().map(|it| {
            let size = binary(it.n_bytes.into());
            format!("  {size:<24}{:>12}{:>18}", us(it.median), us(it.last))
        }));
        lines
    }

    /// Returns the command that uses the figures.
    pub(super) fn verdict(&self) -> String {
        let (n_ranks, network) = (self.hosts.len(), self.network().option());
        format!(
            "what a model gains by these ranks: `moeflux plan NAME --ranks {n_ranks} --network \
             {network}`"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exchange_times_determine_the_network() {
        let network = Network::new(50e-6, 1.1e9);
        let cluster = Cluster { n_ranks: 4, network };
        let by_size = SIZES.map(|n_bytes| {
            let median = Duration::from_secs_f64(cluster.exchange_s(n_bytes.into(), false));
            ExchangeTimes { n_bytes, median, last: 2 * median }
        });
        let hosts = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let exchanges = Exchanges { hosts, by_size: by_size.to_vec() };
        assert_eq!(exchanges.network().option(), network.option());
        let lines = exchanges.lines();
        assert_eq!(lines[0], "ranks: 4, on a, b, c, d");
        assert_eq!(lines[2], "  4.00 KiB                       68 us            136 us");
        assert!(exchanges.verdict().contains("--ranks 4 --network 50,1.10"));
    }
}
