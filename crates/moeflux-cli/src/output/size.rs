//! Numbers of bytes in human-readable form.
//!
//! **Invariant:** all units are powers of 1024, on input with or without the `i`. Numbers in powers
//! of 1000 are printed by `moeflux::ByteCount`.

/// The factor of a unit's letter, as a power of two.
const UNITS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];

/// Further digits are below one byte of a terabyte.
const FRACTION_DIGITS_MAX: usize = 12;

/// Longer numbers are not sizes, and would overflow below.
const WHOLE_DIGITS_MAX: usize = 20;

/// Parses `700M`, `1024MiB`, `2G`, `1.5g`, `4096`.
///
/// # Errors
///
/// The accepted sizes, in one line.
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

/// Returns the power of two of `M`, `MB` or `MiB` in any case.
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

/// Multiplies a decimal number by a power of two and truncates to whole bytes. Exact: a float would
/// lose the last bytes of a large number.
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

/// Formats a size, rounded, in powers of 1024: `3.96 GiB`.
#[expect(clippy::cast_precision_loss, reason = "three digits are printed")]
pub(crate) fn binary(n_bytes: u64) -> String {
    let mut value = n_bytes as f64;
    if value < 1024.0 {
        return format!("{n_bytes} bytes");
    }
    let mut unit = "bytes";
    for larger in ["KiB", "MiB", "GiB", "TiB"] {
        // 1023.9996 KiB would be printed as 1024.00 KiB.
        if value + 0.005 < 1024.0 {
            break;
        }
        value /= 1024.0;
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
    fn errors_state_the_accepted_sizes() {
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
    fn prints_in_powers_of_1024() {
        let cases = [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1.00 KiB"),
            ((1 << 20) - 1, "1.00 MiB"),
            (7_077_888, "6.75 MiB"),
            (4_246_732_800, "3.96 GiB"),
            (1 << 40, "1.00 TiB"),
        ];
        for (n_bytes, expected) in cases {
            assert_eq!(binary(n_bytes), expected);
        }
    }
}
