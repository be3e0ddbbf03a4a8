//! Numbers of bytes, as people write and read them.
//!
//! **Invariant:** what is read means powers of 1024, with or without the `i`: rule 4 of the
//! project. What is printed always has the exact count, so that a rounded unit never has to be
//! guessed: `GB` is 10^9 bytes there and `GiB` is 2^30.

/// What a unit's letter multiplies by, as a power of two.
const UNITS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];

/// More digits than this are below one byte of a terabyte.
const FRACTION_DIGITS_MAX: usize = 12;

/// Longer numbers are no sizes, and would overflow below.
const WHOLE_DIGITS_MAX: usize = 20;

/// Parses `700M`, `1024MiB`, `2G`, `1.5g`, `4096`.
///
/// # Errors
///
/// One line that says what is accepted.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let number_len = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = trimmed.split_at(number_len.unwrap_or(trimmed.len()));
    let bytes = shift_of(unit.trim_start()).and_then(|shift| scaled(number, shift));
    let Some(bytes) = bytes else {
        return Err(format!(
            "`{}` is not a size; write bytes (4096) or a number with K, M, G or T, or KiB, MiB, \
             GiB or TiB, all powers of 1024 (700M, 1.5G)",
            text.escape_debug()
        ));
    };
    u64::try_from(bytes).map_err(|_| format!("`{trimmed}` is more bytes than any file has"))
}

/// The power of two behind `M`, `MB` or `MiB` in any case.
fn shift_of(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_lowercase();
    let mut letters = unit.chars();
    let Some(letter) = letters.next() else { return Some(0) };
    if unit == "b" {
        return Some(0);
    }
    let shift = UNITS.iter().find(|(known, _)| *known == letter)?.1;
    matches!(letters.as_str(), "" | "b" | "ib").then_some(shift)
}

/// A decimal number times a power of two, cut to whole bytes. Exact: a float would lose the last
/// bytes of a large number.
fn scaled(number: &str, shift: u32) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_number = (!whole.is_empty() || !fraction.is_empty())
        && !fraction.contains('.')
        && whole.len() <= WHOLE_DIGITS_MAX
        && fraction.len() <= FRACTION_DIGITS_MAX;
    if !is_number {
        return None;
    }
    let digits = format!("{whole}{fraction}").parse::<u128>().ok()?;
    let divisor = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    digits.checked_mul(1 << shift).map(|product| product / divisor)
}

/// A count with separators: `7,077,888`.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (idx, digit) in digits.chars().enumerate() {
        if idx > 0 && (digits.len() - idx).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Rounded, in powers of 1000: `4.25 GB`.
pub(crate) fn decimal(n_bytes: u64) -> String {
    rounded(n_bytes, 1000.0, ["bytes", "kB", "MB", "GB", "TB"])
}

/// Rounded, in powers of 1024: `3.96 GiB`.
pub(crate) fn binary(n_bytes: u64) -> String {
    rounded(n_bytes, 1024.0, ["bytes", "KiB", "MiB", "GiB", "TiB"])
}

/// In all three ways: `4,246,732,800 bytes (4.25 GB, 3.96 GiB)`.
pub(crate) fn full(n_bytes: u64) -> String {
    if n_bytes < 1000 {
        return format!("{n_bytes} bytes");
    }
    format!("{} bytes ({}, {})", grouped(n_bytes), decimal(n_bytes), binary(n_bytes))
}

#[expect(clippy::cast_precision_loss, reason = "three digits are printed")]
fn rounded(n_bytes: u64, base: f64, units: [&str; 5]) -> String {
    let [plain, units @ ..] = units;
    let mut value = n_bytes as f64;
    if value < base {
        return format!("{n_bytes} {plain}");
    }
    let mut unit = plain;
    for larger in units {
        // 999.9996 kB would be printed as 1000.00 kB.
        if value + 0.005 < base {
            break;
        }
        value /= base;
        unit = larger;
    }
    format!("{value:.2} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes_as_people_write_them() {
        let cases: [(&str, u64); 19] = [
            ("4096", 4096),
            ("0", 0),
            ("12b", 12),
            ("1K", 1024),
            ("1k", 1024),
            ("1KB", 1024),
            ("1KiB", 1024),
            ("1kib", 1024),
            ("700M", 700 << 20),
            ("1024MiB", 1 << 30),
            ("2G", 2 << 30),
            ("1.5g", 3 << 29),
            ("1.5 GiB", 3 << 29),
            (" 3T ", 3 << 40),
            (".5k", 512),
            ("2.k", 2048),
            ("0.1K", 102),
            ("18446744073709551615", u64::MAX),
            ("16777215T", 16_777_215 << 40),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn says_what_it_accepts() {
        let long = "9".repeat(200);
        let wrong = [
            "",
            " ",
            "G",
            ".",
            ".G",
            "1.2.3",
            "-1",
            "+1",
            "1e9",
            "5 bananas",
            "1KBB",
            "1Ki",
            "1P",
            "0x10",
            "1,000",
            "1\n2",
            "\u{661}",
            &long,
        ];
        for text in wrong {
            let error = parse(text).expect_err(text);
            assert!(error.contains("700M") && !error.contains('\n'), "{error}");
        }
        for text in ["18446744073709551616", "16777216T", "99999999999999999999T"] {
            assert!(parse(text).expect_err(text).contains("more bytes"), "{text}");
        }
    }

    #[test]
    fn prints_exact_and_rounded() {
        let cases = [
            (0, "0", "0 bytes", "0 bytes"),
            (999, "999", "999 bytes", "999 bytes"),
            (1000, "1,000", "1.00 kB", "1000 bytes"),
            (1024, "1,024", "1.02 kB", "1.00 KiB"),
            (999_999, "999,999", "1.00 MB", "976.56 KiB"),
            (7_077_888, "7,077,888", "7.08 MB", "6.75 MiB"),
            (4_246_732_800, "4,246,732,800", "4.25 GB", "3.96 GiB"),
            (1 << 40, "1,099,511,627,776", "1.10 TB", "1.00 TiB"),
        ];
        for (n, exact, in_decimal, in_binary) in cases {
            assert_eq!(grouped(n), exact);
            assert_eq!(decimal(n), in_decimal);
            assert_eq!(binary(n), in_binary);
        }
        assert_eq!(full(4_246_732_800), "4,246,732,800 bytes (4.25 GB, 3.96 GiB)");
        assert_eq!(full(12), "12 bytes");
    }
}
