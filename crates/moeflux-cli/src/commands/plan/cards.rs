//! Popular cards as described by their vendors: memory, its rate, and the link to the host.
//!
//! **Invariant:** nothing here was measured, and all output of these figures says so. The rate is
//! the width of the bus times the rate of a pin; memory is in powers of 1024. This module is
//! independent of models and machines.

use crate::model::needs::float;

/// A PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PcieLink {
    pub(crate) generation: u32,
    pub(crate) n_lanes: u32,
}

/// A card as its vendor describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownCard {
    /// The common name, with the memory size if there are variants.
    pub(crate) name: &'static str,
    pub(crate) memory_gib: u32,
    /// 10^9 bytes per second of its own memory.
    pub(crate) memory_gbps: u32,
    pub(crate) link: PcieLink,
    /// Whether drivers offer half-precision matrices to subgroups of 32, for which there are
    /// kernels.
    pub(crate) has_matrices: bool,
}

const fn link(generation: u32, n_lanes: u32) -> PcieLink {
    PcieLink { generation, n_lanes }
}

const fn nvidia(name: &'static str, memory: (u32, u32), link: PcieLink) -> KnownCard {
    let (memory_gib, memory_gbps) = memory;
    KnownCard { name, memory_gib, memory_gbps, link, has_matrices: true }
}

/// A card of another vendor.
const fn other(name: &'static str, memory: (u32, u32), link: PcieLink) -> KnownCard {
    KnownCard { has_matrices: false, ..nvidia(name, memory, link) }
}

/// By vendor and age.
pub(crate) const CARDS: [KnownCard; 25] = [
    nvidia("RTX 3060 12G", (12, 360), link(4, 16)),
    nvidia("RTX 3070", (8, 448), link(4, 16)),
    nvidia("RTX 3080 10G", (10, 760), link(4, 16)),
    nvidia("RTX 3090", (24, 936), link(4, 16)),
    nvidia("RTX 3090 Ti", (24, 1008), link(4, 16)),
    nvidia("RTX 4060 Ti 16G", (16, 288), link(4, 8)),
    nvidia("RTX 4070", (12, 504), link(4, 16)),
    nvidia("RTX 4070 Super", (12, 504), link(4, 16)),
    nvidia("RTX 4070 Ti Super", (16, 672), link(4, 16)),
    nvidia("RTX 4080", (16, 717), link(4, 16)),
    nvidia("RTX 4090", (24, 1008), link(4, 16)),
    nvidia("RTX 5060 Ti 16G", (16, 448), link(5, 8)),
    nvidia("RTX 5070", (12, 672), link(5, 16)),
    nvidia("RTX 5070 Ti", (16, 896), link(5, 16)),
    nvidia("RTX 5080", (16, 960), link(5, 16)),
    nvidia("RTX 5090", (32, 1792), link(5, 16)),
    nvidia("RTX A6000", (48, 768), link(4, 16)),
    nvidia("RTX PRO 6000", (96, 1792), link(5, 16)),
    other("RX 6800 XT", (16, 512), link(4, 16)),
    other("RX 7800 XT", (16, 624), link(4, 16)),
    other("RX 7900 XT", (20, 800), link(4, 16)),
    other("RX 7900 XTX", (24, 960), link(4, 16)),
    other("RX 9070 XT", (16, 640), link(5, 16)),
    other("Arc A770 16G", (16, 560), link(4, 16)),
    other("Arc B580", (12, 456), link(4, 8)),
];

/// Words without information: vendors and generic terms.
const EMPTY_WORDS: [&str; 8] =
    ["nvidia", "geforce", "amd", "radeon", "intel", "graphics", "r", "tm"];

/// Words that turn a name into that of another card.
const WORDS_OF_KIND: [&str; 9] =
    ["ti", "super", "xt", "xtx", "gre", "laptop", "mobile", "max", "d"];

impl PcieLink {
    /// Returns the rate in one direction, after line coding.
    pub(crate) fn bytes_per_s(self) -> f64 {
        let lane = match self.generation {
            ..=3 => 0.985e9,
            4 => 1.969e9,
            _ => 3.938e9,
        };
        lane * float(self.n_lanes.into())
    }
}

impl KnownCard {
    /// Returns the total memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_gib) << 30
    }

    /// Returns the bytes per second of its memory.
    pub(crate) fn memory_bytes_per_s(&self) -> f64 {
        float(self.memory_gbps.into()) * 1e9
    }

    /// Describes the vendor's figures in a line.
    pub(crate) fn text(&self) -> String {
        let Self { name, memory_gib, memory_gbps, link, .. } = self;
        let PcieLink { generation, n_lanes } = link;
        format!(
            "{name}: {memory_gib}G, {memory_gbps} GB/s, PCIe {generation} x{n_lanes}: from the \
             vendor, not measured"
        )
    }

    /// Returns whether a device name reported by a driver denotes this card.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let (own, told) = (words(self.name), words(name));
        // Drivers do not report sizes.
        let own: Vec<&String> = own.iter().filter(|it| !is_size(it)).collect();
        let is_here = |at: usize| {
            let next = told.get(at + own.len()).map_or("", String::as_str);
            told[at..].iter().zip(&own).all(|(a, b)| a == *b) && !WORDS_OF_KIND.contains(&next)
        };
        (0..(told.len() + 1).saturating_sub(own.len())).any(is_here)
    }
}

/// Splits a name into lower-case words without uninformative ones, with a series separate from its
/// number.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = ' ';
    for letter in name.to_lowercase().chars() {
        let is_start = letter.is_ascii_digit() != before.is_ascii_digit();
        let is_size = before.is_ascii_digit() && letter == 'g';
        if (is_start && !is_size) || !before.is_alphanumeric() {
            words.push(String::new());
        }
        if letter.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.push(letter);
        }
        before = letter;
    }
    // Treat 16GB as 16G.
    let words = words.into_iter().map(|word| match word.strip_suffix('b') {
        Some(size) if is_size(size) => size.to_owned(),
        _ => word,
    });
    words.filter(|word| !word.is_empty() && !EMPTY_WORDS.contains(&word.as_str())).collect()
}

fn is_size(word: &str) -> bool {
    let number = word.strip_suffix('g');
    number.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_series(word: &str) -> bool {
    ["rtx", "rx", "arc"].contains(&word)
}

/// Returns the card with this name, with or without its vendor, series and size.
///
/// # Errors
///
/// The known cards, or the candidates for an ambiguous name.
pub(crate) fn named(name: &str) -> Result<&'static KnownCard, String> {
    let told = words(name);
    let is_told = |card: &&KnownCard, leaves: fn(&str) -> bool| {
        let own: Vec<String> = words(card.name).into_iter().filter(|it| !leaves(it)).collect();
        own == told
    };
    let ways: [fn(&str) -> bool; 4] =
        [|_| false, is_size, is_series, |word| is_size(word) || is_series(word)];
    let found = ways.into_iter().find_map(|way| CARDS.iter().find(|card| is_told(card, way)));
    found.ok_or_else(|| {
        let has_all = |card: &&KnownCard| told.iter().all(|it| words(card.name).contains(it));
        let near: Vec<&str> = CARDS.iter().filter(has_all).map(|card| card.name).collect();
        let all: Vec<&str> = CARDS.iter().map(|card| card.name).collect();
        let (what, names) = match near.is_empty() || told.is_empty() {
            true => ("known cards:", all),
            false => ("there is", near),
        };
        format!(
            "no card of this name is known; {what} {}. --gpu-memory and --gpu-gbps describe \
             another one",
            names.join(", ")
        )
    })
}

/// Returns the usual rate of a card of which only the memory size is known: the median of known
/// cards with the same size, or the next larger one.
pub(crate) fn usual_bytes_per_s(memory_bytes: u64) -> f64 {
    let has_room = |card: &&KnownCard| card.memory_bytes() >= memory_bytes;
    let largest = CARDS.iter().map(KnownCard::memory_bytes).max().unwrap_or(0);
    let size = CARDS.iter().filter(has_room).map(KnownCard::memory_bytes).min().unwrap_or(largest);
    let mut rates: Vec<f64> = CARDS
        .iter()
        .filter(|card| card.memory_bytes() == size)
        .map(KnownCard::memory_bytes_per_s)
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_found_as_people_write_them() {
        for (told, name) in [
            ("RTX 3090", "RTX 3090"),
            ("rtx3090", "RTX 3090"),
            ("3090", "RTX 3090"),
            ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"),
            ("4070 ti super", "RTX 4070 Ti Super"),
            ("RTX-4060-Ti-16GB", "RTX 4060 Ti 16G"),
            ("4060ti", "RTX 4060 Ti 16G"),
            ("3060", "RTX 3060 12G"),
            ("7900xt", "RX 7900 XT"),
            ("Radeon RX 7900 XTX", "RX 7900 XTX"),
            ("intel arc b580", "Arc B580"),
            ("a770", "Arc A770 16G"),
            ("pro 6000", "RTX PRO 6000"),
        ] {
            assert_eq!(named(told).map(|card| card.name), Ok(name), "{told}");
        }
        for card in &CARDS {
            assert_eq!(named(card.name), Ok(card));
        }
    }

    #[test]
    fn unknown_names_get_a_list_of_known_ones() {
        let error = |name| named(name).unwrap_err();
        assert!(error("4060").ends_with("describe another one"), "{}", error("4060"));
        assert!(error("4060").contains("there is RTX 4060 Ti 16G."), "{}", error("4060"));
        assert!(error("Voodoo 2").contains("known cards: RTX 3060 12G, "), "{}", error("Voodoo 2"));
        // A different size is a different card.
        for name in ["", " ", "rtx", "RTX 3060 8G", "\u{660}", "1\n2"] {
            error(name);
        }
    }

    #[test]
    fn devices_are_the_cards_that_drivers_name() {
        let known = |name| named(name).unwrap();
        for (name, device, expected) in [
            ("3090", "NVIDIA GeForce RTX 3090", true),
            ("3090", "NVIDIA GeForce RTX 3090 Ti", false),
            ("3090 Ti", "NVIDIA GeForce RTX 3090 Ti", true),
            ("4090", "NVIDIA GeForce RTX 4090 Laptop GPU", false),
            ("3060", "NVIDIA GeForce RTX 3060", true),
            ("7900 XT", "AMD Radeon RX 7900 XTX (RADV NAVI31)", false),
            ("7900 XTX", "AMD Radeon RX 7900 XTX (RADV NAVI31)", true),
            ("A770", "Intel(R) Arc(TM) A770 Graphics (DG2)", true),
            ("B580", "NVIDIA H100 80GB HBM3", false),
            ("B580", "", false),
        ] {
            assert_eq!(known(name).is_called(device), expected, "{name}, {device}");
        }
    }

    #[test]
    fn an_unknown_card_is_as_fast_as_those_of_its_size() {
        let gbps = |n_gib: u64| usual_bytes_per_s(n_gib << 30) / 1e9;
        let check = |n_gib, expected: f64| {
            assert!((gbps(n_gib) - expected).abs() < 0.1, "{n_gib}: {}", gbps(n_gib));
        };
        check(8, 448.0);
        check(20, 800.0);
        // 936, 960 and two of 1,008.
        check(24, 1008.0);
        check(22, 1008.0);
        check(40, 768.0);
        check(1000, 1792.0);
    }

    #[test]
    fn links_have_their_rates() {
        assert!((link(4, 16).bytes_per_s() - 31.5e9).abs() < 0.1e9);
        assert!((link(5, 8).bytes_per_s() - 31.5e9).abs() < 0.1e9);
        let line = named("3090").unwrap().text();
        assert_eq!(line, "RTX 3090: 24G, 936 GB/s, PCIe 4 x16: from the vendor, not measured");
    }
}
