//! Determines which divisors llguidance handles exactly.
//!
//! It tracks the digits of a number in 32 bits, and multiplies divisors that apply to the same
//! number. Larger values wrap around there, and would silently enforce another divisor.
//! **Invariant:** no combination of divisors of one document wraps around.

use serde_json::Value as Json;

/// Maximum number of decimal places; more do not fit in 32 bits.
const PLACES_MAX: u32 = 8;

/// The divisors of one document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Multiples {
    /// Whether one divisor may apply twice to the same number: llguidance then multiplies it by
    /// itself.
    may_repeat: bool,
    all: Option<Divisor>,
}

/// The value `units / 10^n_places`.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    units: u64,
    n_places: u32,
}

impl Multiples {
    /// Creates the empty set of divisors of a document.
    pub(crate) fn new(has_references: bool) -> Self {
        Self { may_repeat: has_references, all: None }
    }

    /// Adds the value of a `multipleOf`.
    ///
    /// # Errors
    /// The reason why it cannot be enforced together with the earlier ones.
    pub(crate) fn add(&mut self, value: &Json) -> Result<(), String> {
        let Some(number) = value.as_f64() else { return Err(format!("{value} is not a number")) };
        if number <= 0.0 {
            return Err(format!("{value} is not greater than 0"));
        }
        let divisor = Divisor::of(number).filter(|it| it.fits());
        let divisor = divisor.ok_or_else(|| {
            format!("{value} has too many digits to be followed in 32 bits; take a rounder one")
        })?;
        let Some(all) = self.all else {
            if self.may_repeat && !divisor.fits_squared() {
                return Err(format!(
                    "beside references it must be below 65536 in its last decimal place, not \
                     {value}"
                ));
            }
            self.all = Some(divisor);
            return Ok(());
        };
        let both = all.with(divisor).filter(|it| it.fits() && it.fits_squared());
        self.all = Some(both.ok_or_else(|| {
            format!(
                "the least common multiple of {value} and the schema's other values must be below \
                 65536 in its last decimal place"
            )
        })?);
        Ok(())
    }
}

impl Divisor {
    /// Reads a number as llguidance does: shifted until it is an integer.
    fn of(number: f64) -> Option<Self> {
        let (mut shifted, mut n_places) = (number, 0);
        while shifted.fract() != 0.0 {
            shifted *= 10.0;
            n_places += 1;
            if n_places > PLACES_MAX {
                return None;
            }
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        let units = (shifted <= f64::from(u32::MAX)).then_some(shifted as u64)?;
        Some(Self { units, n_places })
    }

    /// Returns the least common multiple of both.
    fn with(self, other: Self) -> Option<Self> {
        let n_places = self.n_places.max(other.n_places);
        let scaled = |it: Self| it.units.checked_mul(10_u64.pow(n_places - it.n_places));
        let (a, b) = (scaled(self)?, scaled(other)?);
        Some(Self { units: (a / common_divisor(a, b)).checked_mul(b)?, n_places })
    }

    /// Returns whether a remainder with one more digit, before or after the point, fits.
    fn fits(self) -> bool {
        let digit = 9 * 10_u64.pow(self.n_places);
        let most = self.units.checked_mul(10).and_then(|it| it.checked_add(digit));
        most.is_some_and(|it| it <= u64::from(u32::MAX))
    }

    /// Returns whether the product of any two of its divisors fits.
    fn fits_squared(self) -> bool {
        self.units <= u64::from(u16::MAX)
    }
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(values: &[Json], has_references: bool, expected: Result<(), &str>) {
        let mut multiples = Multiples::new(has_references);
        let (last, before) = values.split_last().unwrap();
        before.iter().for_each(|it| multiples.add(it).unwrap());
        match (multiples.add(last), expected) {
            (Ok(()), Ok(())) => {}
            (Err(problem), Err(part)) => assert!(problem.contains(part), "{problem}"),
            (found, _) => panic!("{values:?}: {found:?}"),
        }
    }

    #[test]
    fn divisors_that_would_wrap_around_are_refused() {
        let check = |value: Json, expected| check(&[value], false, expected);
        check(json!(429_496_728), Ok(()));
        check(json!(429_496_729), Err("too many digits"));
        check(json!(1_000_000_000), Err("too many digits"));
        check(json!(3_000_000_000_u64), Err("too many digits"));
        check(json!(u64::MAX), Err("too many digits"));
        check(json!(1e300), Err("too many digits"));
        check(json!(1e-8), Ok(()));
        check(json!(7e-9), Err("too many digits"));
        check(json!(5e-324), Err("too many digits"));
        check(json!(0), Err("not greater than 0"));
        check(json!(-2), Err("not greater than 0"));
        check(json!("2"), Err("not a number"));
    }

    #[test]
    fn divisors_that_may_hold_together_are_smaller() {
        check(&[json!(100_000)], true, Err("beside references"));
        check(&[json!(0.01)], true, Ok(()));
        check(&[json!(65_535)], true, Ok(()));
        check(&[json!(100_000), json!(99_999)], false, Err("least common multiple"));
        check(&[json!(100_000), json!(100_000)], false, Err("least common multiple"));
        check(&[json!(1_000), json!(500), json!(1_000)], false, Ok(()));
        check(&[json!(0.01), json!(0.25), json!(60)], false, Ok(()));
        check(&[json!(0.000_01), json!(60)], false, Err("least common multiple"));
    }
}
