//! The network between several machines, and the time of exchanges over it.
//!
//! **Invariant:** pure arithmetic; figures that were not measured are marked.

use std::time::Duration;

/// Seconds that MPI takes for each message of an exchange.
const MESSAGE_S: f64 = 5e-6;

/// Factor by which networks with observed delays are slower than their nominal figures.
const LOW: f64 = 1.5;

/// Bytes that a rank sends in front of its values.
const NOTE_BYTES: f64 = 48.0;

/// Networks by name: latency of a message in microseconds, and bytes per second.
const KNOWN: [(&str, f64, f64); 4] =
    [("1g", 100.0, 0.11e9), ("10g", 50.0, 1.1e9), ("25g-rdma", 5.0, 2.8e9), ("tb5", 10.0, 6e9)];

/// Upper bound on the latency: no model should be run over a slower network.
const LATENCY_US_MAX: f64 = 1e6;

/// A network between machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Network {
    latency_s: f64,
    bytes_per_s: f64,
    /// The name, if it has one: then its figures were not measured.
    name: Option<&'static str>,
}

/// The delay of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delay {
    /// For each message.
    pub(crate) latency: Duration,
    /// For each byte that a machine receives.
    pub(crate) picoseconds_per_byte: u64,
}

/// Machines that run a model together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cluster {
    /// The number of machines.
    pub(crate) n_ranks: u32,
    pub(crate) network: Network,
}

impl Network {
    /// Returns a network with measured figures.
    pub(crate) const fn new(latency_s: f64, bytes_per_s: f64) -> Self {
        Self { latency_s, bytes_per_s, name: None }
    }

    /// Returns the default network.
    pub(crate) fn usual() -> Self {
        Self::named("10g").expect("it is one of those")
    }

    fn named(name: &str) -> Option<Self> {
        let &(name, latency_us, bytes_per_s) = KNOWN.iter().find(|it| it.0 == name)?;
        Some(Self { latency_s: latency_us / 1e6, bytes_per_s, name: Some(name) })
    }

    /// Parses `--network`: a name, or microseconds and 10^9 bytes per second.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(known) = Self::named(text) {
            return Ok(known);
        }
        let names: Vec<&str> = KNOWN.iter().map(|it| it.0).collect();
        let refused = || {
            format!(
                "give {}, or microseconds and 10^9 bytes per second, such as 50,1.1",
                names.join(", ")
            )
        };
        let (latency, rate) = text.split_once(',').ok_or_else(refused)?;
        let [latency_us, gbps] = [latency, rate].map(|it| it.trim().parse::<f64>());
        match (latency_us, gbps) {
            (Ok(latency_us), Ok(gbps))
                if (0.0..=LATENCY_US_MAX).contains(&latency_us)
                    && (0.001..=100_000.0).contains(&gbps) =>
            {
                Ok(Self::new(latency_us / 1e6, gbps * 1e9))
            }
            _ => Err(refused()),
        }
    }

    /// Returns the delay with which processes of one host simulate the network.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "both are positive and limited"
    )]
    pub(crate) fn delay(&self) -> Delay {
        let latency = Duration::from_nanos((1e9 * self.latency_s).round() as u64);
        Delay { latency, picoseconds_per_byte: (1e12 / self.bytes_per_s).round() as u64 }
    }

    /// Formats the network as an option accepts it.
    pub(crate) fn option(&self) -> String {
        let gbps = self.bytes_per_s / 1e9;
        let digits = if gbps < 0.1 { 4 } else { 2 };
        format!("{:.0},{gbps:.digits$}", self.latency_s * 1e6)
    }

    /// Describes the network as text.
    pub(crate) fn text(&self) -> String {
        let Self { latency_s, bytes_per_s, name } = self;
        let figures = format!("{:.0} us, {:.2} GB/s", latency_s * 1e6, bytes_per_s / 1e9);
        match name {
            Some(name) => {
                format!("{name}: {figures}, assumed: `moeflux doctor` under mpirun measures it")
            }
            None => format!("{figures}, from --network"),
        }
    }
}

impl Cluster {
    /// Returns the network over which `n_ranks` machines exchange the first number of bytes in the
    /// first time, and the second number in the second time.
    pub(crate) fn network_of(n_ranks: u32, [first, second]: [(f64, Duration); 2]) -> Network {
        let few = received(n_ranks, first.0);
        let longer = second.1.saturating_sub(first.1).as_secs_f64();
        let bytes_per_s = (received(n_ranks, second.0) - few) / longer.max(1e-9);
        let messages = f64::from(n_ranks - 1) * MESSAGE_S;
        let latency_s = first.1.as_secs_f64() - messages - few / bytes_per_s;
        Network::new(latency_s.max(0.0), bytes_per_s)
    }

    /// Returns the seconds of an exchange to which all machines together contribute `n_bytes`. Each
    /// sends to every other one, and all links are used at once.
    pub(crate) fn exchange_s(&self, n_bytes: f64, is_low: bool) -> f64 {
        let Network { latency_s, bytes_per_s, .. } = self.network;
        let messages = f64::from(self.n_ranks - 1) * MESSAGE_S;
        let seconds = latency_s + messages + received(self.n_ranks, n_bytes) / bytes_per_s;
        if is_low { LOW * seconds } else { seconds }
    }
}

/// Returns the bytes that each machine receives of `n_bytes` in total.
fn received(n_ranks: u32, n_bytes: f64) -> f64 {
    f64::from(n_ranks - 1) * (n_bytes / f64::from(n_ranks) + NOTE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_have_names_or_figures() {
        assert_eq!(Network::parse("10g"), Ok(Network::usual()));
        assert_eq!(Network::parse("50,1.1"), Ok(Network::new(50e-6, 1.1e9)));
        assert_eq!(Network::parse("50,1.1").map(|it| it.option()), Ok("50,1.10".to_owned()));
        for text in ["", "40g", "50", "50,", ",1", "-1,1", "1,0", "nan,1", "1,inf", "1,1,1"] {
            let refused = Network::parse(text).unwrap_err();
            assert!(refused.contains("10g") && refused.contains("as 50,1.1"), "{text}: {refused}");
        }
    }

    #[test]
    fn an_exchange_takes_its_way_its_messages_and_its_bytes() {
        let cluster = Cluster { n_ranks: 4, network: Network::new(50e-6, 1e9) };
        let us = 1e6 * cluster.exchange_s(40_000.0, false);
        // 50, 3 messages, and 3 x (10,000 + 48) bytes.
        assert!((us - (50.0 + 15.0 + 30.144)).abs() < 1e-6, "{us}");
        assert!((1e6 * cluster.exchange_s(40_000.0, true) - 1.5 * us).abs() < 1e-6);
    }
}
