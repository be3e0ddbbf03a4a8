//! `strftime_now`: formats a given time as a template requests.
//!
//! **Invariant:** no clock is read, so that a rendering is reproducible. Names are English, as in
//! the C locale. Years 1 to 9999.

use std::fmt::Write as _;
use std::sync::Arc;

use minijinja::{Error, ErrorKind, Value};

use crate::text::template::meter::{RenderMeter, units};

const DAY_SECONDS: i64 = 86_400;
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
/// 0001-01-01 and the end of 9999, in seconds since 1970.
const SECONDS_MIN: i64 = -62_135_596_800;
const SECONDS_MAX: i64 = 253_402_300_799;

/// Returns the function as a value. Without a time it returns an error.
pub(super) fn strftime_now(meter: &Arc<RenderMeter>, now_seconds: Option<i64>) -> Value {
    let meter = Arc::clone(meter);
    Value::from_function(move |format: &str| -> Result<Value, Error> {
        // Two bytes of a format become at most ten of a date.
        meter.work(units(format.len()).saturating_mul(200))?;
        meter.room(units(format.len()).saturating_mul(12))?;
        let refused = |why: &str| Error::new(ErrorKind::InvalidOperation, why.to_owned());
        let now = now_seconds.ok_or_else(|| refused("strftime_now: no time was given"))?;
        if !(SECONDS_MIN..=SECONDS_MAX).contains(&now) {
            return Err(refused("strftime_now: the time is outside of the years 1 to 9999"));
        }
        let date = strftime(format, now)
            .ok_or_else(|| refused(&format!("strftime_now: cannot write `{format}`")))?;
        meter.text(date)
    })
}

/// A date in the proleptic Gregorian calendar.
struct Date {
    year: i64,
    month: usize,
    day: i64,
    day_of_year: i64,
    weekday: usize,
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of_year(year: i64) -> i64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of_month(year: i64, month: usize) -> i64 {
    match month {
        1 => days_of_year(year) - 337,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

fn date(now: i64) -> Date {
    let days = now.div_euclid(DAY_SECONDS);
    let weekday = usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0);
    let mut year = 1970 + days.div_euclid(366);
    let first = |year: i64| {
        let past = year - 1;
        past * 365 + past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400) - 719_162
    };
    // The estimate is early from 1970 on and late before it, by less than one year in 300.
    while days < first(year) {
        year -= 1;
    }
    while days >= first(year + 1) {
        year += 1;
    }
    let day_of_year = days - first(year);
    let mut day = day_of_year;
    let mut month = 0;
    while day >= days_of_month(year, month) {
        day -= days_of_month(year, month);
        month += 1;
    }
    Date { year, month, day: day + 1, day_of_year: day_of_year + 1, weekday }
}

/// Formats a time; `None` for an unsupported directive.
fn strftime(format: &str, now: i64) -> Option<String> {
    let date = date(now);
    let second = now.rem_euclid(DAY_SECONDS);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let hour_12 = (hour + 11) % 12 + 1;
    let month = i64::try_from(date.month).ok()? + 1;
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = characters.next()?;
        let is_unpadded = directive == '-';
        if is_unpadded {
            directive = characters.next()?;
        }
        let (number, width) = match directive {
            'Y' => (date.year, 4),
            'm' => (month, 2),
            'd' => (date.day, 2),
            'H' => (hour, 2),
            'I' => (hour_12, 2),
            'M' => (minute, 2),
            'S' => (second, 2),
            'y' => (date.year % 100, 2),
            'j' => (date.day_of_year, 3),
            _ => {
                out.push_str(&text_of(directive, &date, now)?);
                continue;
            }
        };
        let width = if is_unpadded { 0 } else { width };
        write!(out, "{number:0width$}").ok()?;
    }
    Some(out)
}

fn text_of(directive: char, date: &Date, now: i64) -> Option<String> {
    let month = MONTHS[date.month];
    let weekday = WEEKDAYS[date.weekday];
    Some(match directive {
        'B' => month.to_owned(),
        'b' | 'h' => month[..3].to_owned(),
        'A' => weekday.to_owned(),
        'a' => weekday[..3].to_owned(),
        'e' => format!("{:2}", date.day),
        'p' => (if now.rem_euclid(DAY_SECONDS) < DAY_SECONDS / 2 { "AM" } else { "PM" }).to_owned(),
        'F' => strftime("%Y-%m-%d", now)?,
        'T' => strftime("%H:%M:%S", now)?,
        'D' => strftime("%m/%d/%y", now)?,
        '%' => "%".to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_that_python_gave() {
        let all = "%Y-%m-%d %H:%M:%S %B %b %A %a %j %y %e %-d %-m %I %p %%";
        let table = [
            (0, "1970-01-01 00:00:00 January Jan Thursday Thu 001 70  1 1 1 12 AM %"),
            (951_782_400, "2000-02-29 00:00:00 February Feb Tuesday Tue 060 00 29 29 2 12 AM %"),
            (1_735_689_599, "2024-12-31 23:59:59 December Dec Tuesday Tue 366 24 31 31 12 11 PM %"),
            (4_107_542_400, "2100-03-01 00:00:00 March Mar Monday Mon 060 00  1 1 3 12 AM %"),
            (-1, "1969-12-31 23:59:59 December Dec Wednesday Wed 365 69 31 31 12 11 PM %"),
            (SECONDS_MIN, "0001-01-01 00:00:00 January Jan Monday Mon 001 01  1 1 1 12 AM %"),
            (SECONDS_MAX, "9999-12-31 23:59:59 December Dec Friday Fri 365 99 31 31 12 11 PM %"),
        ];
        for (now, expected) in table {
            assert_eq!(strftime(all, now).as_deref(), Some(expected), "{now}");
        }
        assert_eq!(strftime("%F %T %D", 1_000_000_000).unwrap(), "2001-09-09 01:46:40 09/09/01");
    }

    #[test]
    fn unknown_directives_have_no_text() {
        for format in ["%Q", "%", "%-", "%-Q"] {
            assert_eq!(strftime(format, 0), None, "{format}");
        }
    }
}
