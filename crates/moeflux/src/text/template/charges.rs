//! The charges for the library's functions, computed from their arguments.
//!
//! **Invariant:** a charge is at least the work, and the requested memory at least twice the
//! result: the library creates a text and then copies it into a value.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use crate::text::template::meter::{RenderMeter, refused, units};
use crate::text::template::values::{depth, n_items, walk};

/// Charges a call with these arguments, the value first.
pub(super) type Charge = fn(&RenderMeter, &[Value]) -> Result<(), Error>;

/// Returns an upper bound on the printed length of a value. In a list, a byte of text may become an
/// escape of four.
fn print_bytes(value: &Value) -> u64 {
    value.as_str().map_or_else(|| walk(value).saturating_mul(4), |text| units(text.len()))
}

/// Maximum bytes of a number without a width; such numbers are slow to print.
const FIELD_BYTES_MAX: u64 = 2000;

fn first(args: &[Value]) -> &Value {
    args.first().unwrap_or(&Value::UNDEFINED)
}

fn sum(args: &[Value], of: fn(&Value) -> u64) -> u64 {
    args.iter().fold(0, |sum, arg| sum.saturating_add(of(arg)))
}

/// Charges a function that inspects a number, a flag or a key.
pub(super) fn few(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    meter.work(args.iter().skip(1).fold(0, |sum, arg| sum.saturating_add(walk(arg))))?;
    let text_bytes = first(args).as_str().map_or(0, str::len);
    meter.work(2 * units(text_bytes))
}

/// Charges a function that prints its arguments.
pub(super) fn text(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    let bytes = sum(args, print_bytes);
    meter.work(bytes.saturating_mul(4))?;
    meter.room(bytes.saturating_mul(2))
}

/// Charges a function that changes case: at most three times the bytes, in a few scripts.
pub(super) fn letters(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    let bytes = sum(args, print_bytes);
    let is_ascii = first(args).as_str().is_some_and(str::is_ascii);
    meter.work(bytes.saturating_mul(if is_ascii { 12 } else { 24 }))?;
    meter.room(bytes.saturating_mul(if is_ascii { 2 } else { 6 }))
}

/// Charges an escaping function, which writes `&#x27;` for a quote.
pub(super) fn escaped(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    let bytes = sum(args, print_bytes);
    meter.work(bytes.saturating_mul(12))?;
    meter.room(bytes.saturating_mul(12))
}

/// Charges a function that visits items, keys or characters and lists them.
pub(super) fn items(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    let n_items = n_items(first(args));
    let is_text = first(args).as_str().is_some();
    meter.work(n_items.saturating_mul(if is_text { 30 } else { 20 }))?;
    meter.room(n_items.saturating_mul(64))
}

/// Charges a function that splits a text, at most at each character.
pub(super) fn pieces(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    text(meter, args)?;
    let Some(text) = first(args).as_str() else { return Ok(()) };
    let n_pieces = match args.get(1).and_then(Value::as_str) {
        Some(separator) => text.matches(separator).count(),
        None => text.chars().filter(|it| it.is_whitespace()).count(),
    };
    let n_pieces = units(n_pieces);
    meter.work(n_pieces.saturating_mul(60))?;
    // A short piece is stored inline in its value; a longer one has a header.
    meter.room(n_pieces.saturating_mul(64).saturating_add(units(text.len())))
}

/// Charges a function that trims a set of characters from both ends.
pub(super) fn trimmed(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    text(meter, args)?;
    let n_characters = args.get(1).map_or(1, n_items).max(1);
    meter.work(n_items(first(args)).saturating_mul(n_characters.min(1000)))?;
    if n_characters > 1000 { Err(refused("more than 1000 characters to trim")) } else { Ok(()) }
}

/// Charges a function that compares each item with others, through lowercase copies.
pub(super) fn sorted(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    items(meter, args)?;
    let value = first(args);
    let rounds = u64::from(n_items(value).max(1).ilog2() + 1);
    let path = args.iter().skip(1).map(|_| 200).sum::<u64>();
    meter.work(n_items(value).saturating_mul(path))?;
    meter.work(walk(value).saturating_mul(8).saturating_mul(rounds))?;
    meter.room(walk(value).saturating_mul(2).min(n_items(value).saturating_mul(256).max(1 << 20)))
}

/// Charges a function that creates the requested number of groups, or fills the last one.
pub(super) fn groups(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    items(meter, args)?;
    let count = args.get(1).and_then(|count| u64::try_from(count.clone()).ok()).unwrap_or(0);
    // Each group is a list. There is at most one per item, or the requested number.
    let n_groups = count.saturating_add(n_items(first(args)));
    meter.work(n_groups.saturating_mul(200))?;
    meter.room(n_groups.saturating_mul(128))
}

/// Charges a function that inserts the requested number of blanks before each line.
pub(super) fn indent(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    text(meter, args)?;
    let width = args.get(1).and_then(|given| match given.kind() {
        ValueKind::Number => u64::try_from(given.clone()).ok(),
        _ => given.get_attr("width").ok().and_then(|width| u64::try_from(width).ok()),
    });
    let n_lines = match first(args).as_str() {
        Some(text) => units(text.bytes().filter(|byte| *byte == b'\n').count()),
        None => print_bytes(first(args)),
    };
    let bytes = width.unwrap_or(4).saturating_mul(n_lines.saturating_add(2));
    meter.work(bytes)?;
    meter.room(bytes.saturating_mul(3))
}

/// Charges a function that prints a value over many lines, indented by depth.
pub(super) fn indented(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    let value = first(args);
    let factor = 8_u64.saturating_add(depth(value).saturating_mul(4));
    let bytes = walk(value).saturating_mul(factor);
    meter.work(bytes.saturating_mul(2))?;
    meter.room(bytes)
}

pub(super) fn rounded(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    // Up to 1,074 digits are printed and parsed again.
    meter.work(8000)?;
    few(meter, args)
}

/// Charges a function that fills a pattern: its text, its arguments once per field, and its widths,
/// which are numbers in the pattern or, for `*`, among the arguments.
pub(super) fn format(meter: &RenderMeter, args: &[Value]) -> Result<(), Error> {
    let pattern = first(args).as_str().unwrap_or_default();
    let n_fields = units(pattern.bytes().filter(|byte| matches!(byte, b'%' | b'{')).count());
    let longest = args.iter().skip(1).map(print_bytes).max().unwrap_or(0);
    let named = args.last().filter(|last| last.is_kwargs());
    let longest = longest.max(named.map_or(0, longest_named));
    let mut widths = numbers_in(pattern);
    if pattern.contains('*') {
        let number = |arg: &Value| i64::try_from(arg.clone()).map_or(0, i64::unsigned_abs);
        widths = args.iter().skip(1).fold(widths, |sum, arg| sum.saturating_add(number(arg)));
    }
    // A fill character has up to four bytes, and each field may escape its contents.
    let fields = longest.saturating_add(FIELD_BYTES_MAX).saturating_mul(n_fields).saturating_mul(4);
    let bytes = widths.saturating_mul(4).saturating_add(fields);
    let bytes = bytes.saturating_add(units(pattern.len()));
    meter.work(bytes.saturating_mul(2))?;
    meter.room(bytes.saturating_mul(2))
}

fn longest_named(named: &Value) -> u64 {
    let Ok(keys) = named.try_iter() else { return 0 };
    keys.filter_map(|key| named.get_item(&key).ok()).map(|it| print_bytes(&it)).max().unwrap_or(0)
}

/// Returns the sum of all numbers in a text.
fn numbers_in(text: &str) -> u64 {
    let (mut sum, mut number) = (0_u64, 0_u64);
    for byte in text.bytes() {
        if byte.is_ascii_digit() {
            number = number.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
        } else {
            sum = sum.saturating_add(std::mem::take(&mut number));
        }
    }
    sum.saturating_add(number)
}
