//! The operators whose cost depends on lengths, as functions that charge in advance.
//!
//! `compile` calls them where the library would use its own instructions. **Invariant:** results
//! are those of Python for the values of templates, and consist of the lists, maps and tracked
//! texts of this module's parent.

use std::fmt::{self, Write as _};
use std::ops::ControlFlow;

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use crate::text::template::meter::{RenderMeter, refused, units};
use crate::text::template::values::{
    self, SequenceKind, items, keep, n_items, sequence_kind, walk,
};

/// Base work of a function call.
pub(super) const CALL_WORK: u64 = 200;
/// Work of an operator on short values.
const NUMBER_WORK: u64 = 50;

/// A text that charges the meter as it grows.
struct MeteredText<'a> {
    meter: &'a RenderMeter,
    text: String,
}

impl fmt::Write for MeteredText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > self.text.capacity() {
            let bytes = units(self.text.len() + text.len());
            self.meter.room(bytes.saturating_mul(3)).map_err(|_| fmt::Error)?;
        }
        self.text.push_str(text);
        Ok(())
    }
}

/// Returns the work of printing a value.
fn print_work(value: &Value) -> u64 {
    walk(value).saturating_mul(4)
}

/// Concatenates the printed forms of values.
pub(super) fn joined(meter: &RenderMeter, parts: &[&Value]) -> Result<Value, Error> {
    let mut bytes = 0;
    for part in parts {
        bytes += part.as_str().map_or(0, |text| units(text.len()));
        meter.work(if part.as_str().is_some() { 0 } else { print_work(part) })?;
    }
    meter.work(CALL_WORK + bytes)?;
    meter.room(bytes * 2)?;
    let text = String::with_capacity(usize::try_from(bytes).unwrap_or(0));
    let mut metered = MeteredText { meter, text };
    for part in parts {
        match part.as_str() {
            Some(text) => metered.text.push_str(text),
            None => print(&mut metered, part)?,
        }
    }
    meter.text(metered.text)
}

fn print(metered: &mut MeteredText<'_>, value: &Value) -> Result<(), Error> {
    let meter = metered.meter;
    if write!(metered, "{value}").is_err() {
        meter.check()?;
        return Err(refused("a value cannot be printed"));
    }
    Ok(())
}

/// Two numbers of the same kind.
enum NumberPair {
    Integers(i128, i128),
    Floats(f64, f64),
}

fn numbers(a: &Value, b: &Value) -> Option<NumberPair> {
    let is_number = |value: &Value| value.is_number() || value.kind() == ValueKind::Bool;
    if !is_number(a) || !is_number(b) {
        return None;
    }
    let integer = |value: &Value| i128::try_from(value.clone()).ok();
    let is_float = |value: &Value| value.is_number() && !value.is_integer();
    if is_float(a) || is_float(b) {
        let float = |value: &Value| -> Option<f64> {
            match integer(value) {
                // Rounded, as in Python.
                #[expect(clippy::cast_precision_loss, reason = "the sum is a float anyway")]
                Some(integer) if !is_float(value) => Some(integer as f64),
                _ => f64::try_from(value.clone()).ok(),
            }
        };
        return Some(NumberPair::Floats(float(a)?, float(b)?));
    }
    Some(NumberPair::Integers(integer(a)?, integer(b)?))
}

fn integer(number: i128) -> Value {
    i64::try_from(number).map_or_else(|_| Value::from(number), Value::from)
}

fn impossible(sign: &str, a: &Value, b: &Value) -> Error {
    let (a, b) = (a.kind(), b.kind());
    refused(format!("tried to use {sign} operator on unsupported types {a} and {b}"))
}

pub(super) fn add(meter: &RenderMeter, a: &Value, b: &Value) -> Result<Value, Error> {
    if a.as_str().is_some() && b.as_str().is_some() {
        return joined(meter, &[a, b]);
    }
    if let (Some(left), Some(right)) = (items(a), items(b)) {
        let is_tuple = |value| sequence_kind(value) != Some(SequenceKind::List);
        if is_tuple(a) != is_tuple(b) {
            return Err(impossible("+", a, b));
        }
        let n_items = left.len() + right.len();
        meter.work(CALL_WORK + 8 * units(n_items))?;
        meter.room(32 * units(n_items))?;
        let kind = if is_tuple(a) { SequenceKind::Tuple } else { SequenceKind::List };
        return values::sequence(meter, [left, right].concat(), kind);
    }
    meter.work(NUMBER_WORK)?;
    let sum = match numbers(a, b) {
        Some(NumberPair::Integers(a, b)) => a.checked_add(b).map(integer),
        Some(NumberPair::Floats(a, b)) => Some(Value::from(a + b)),
        None => return Err(impossible("+", a, b)),
    };
    sum.ok_or_else(|| refused(format!("unable to calculate {a} + {b}")))
}

pub(super) fn mul(meter: &RenderMeter, a: &Value, b: &Value) -> Result<Value, Error> {
    let is_repeatable = |value: &Value| value.as_str().is_some() || items(value).is_some();
    let (repeated, count) = if is_repeatable(a) { (a, b) } else { (b, a) };
    if is_repeatable(repeated) {
        let count = count
            .as_usize()
            .ok_or_else(|| refused("strings and lists can only be multiplied with integers"))?;
        let n_parts = n_items(repeated).saturating_mul(units(count));
        meter.work(n_parts.saturating_add(CALL_WORK))?;
        if let Some(text) = repeated.as_str() {
            meter.room(n_parts.saturating_mul(2))?;
            return meter.text(text.repeat(count));
        }
        meter.work(n_parts.saturating_mul(8))?;
        meter.room(n_parts.saturating_mul(32))?;
        let kind = sequence_kind(repeated).unwrap_or(SequenceKind::List);
        let items = items(repeated).unwrap_or(&[]);
        let all = std::iter::repeat_n(items, count).flatten().cloned();
        return values::sequence(meter, all.collect(), kind);
    }
    meter.work(NUMBER_WORK)?;
    let product = match numbers(a, b) {
        Some(NumberPair::Integers(a, b)) => a.checked_mul(b).map(integer),
        Some(NumberPair::Floats(a, b)) => Some(Value::from(a * b)),
        None => return Err(impossible("*", a, b)),
    };
    product.ok_or_else(|| refused(format!("unable to calculate {a} * {b}")))
}

pub(super) fn concat(meter: &RenderMeter, a: &Value, b: &Value) -> Result<Value, Error> {
    joined(meter, &[a, b])
}

/// Charges a comparison, which visits at most the shorter value.
fn charge_comparison(meter: &RenderMeter, a: &Value, b: &Value) -> Result<(), Error> {
    if values::is_loop(a) || values::is_loop(b) {
        return Err(refused("a loop variable cannot be compared"));
    }
    match (a.as_str(), b.as_str()) {
        (Some(a), Some(b)) => meter.work(units(a.len().min(b.len())) / 8 + NUMBER_WORK),
        // The comparison visits keys and items by dynamic calls.
        _ => meter.work(walk(a).min(walk(b)).saturating_mul(6)),
    }
}

pub(super) fn compare(
    meter: &RenderMeter,
    a: &Value,
    b: &Value,
    operator: fn(&Value, &Value) -> bool,
) -> Result<Value, Error> {
    charge_comparison(meter, a, b)?;
    Ok(Value::from(operator(a, b)))
}

pub(super) fn is_same(meter: &RenderMeter, a: &Value, b: &Value) -> Result<bool, Error> {
    charge_comparison(meter, a, b)?;
    Ok(a == b)
}

/// Evaluates `a in b`.
pub(super) fn contained(meter: &RenderMeter, a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(text) = b.as_str() {
        let part = match a.as_str() {
            Some(_) => a.clone(),
            None => joined(meter, &[a])?,
        };
        let part = part.as_str().unwrap_or_default();
        meter.work(CALL_WORK + 2 * units(text.len() + part.len()))?;
        return Ok(Value::from(text.contains(part)));
    }
    meter.work(NUMBER_WORK)?;
    if let Some(items) = items(b) {
        for item in items {
            if is_same(meter, item, a)? {
                return Ok(Value::from(true));
            }
        }
        return Ok(Value::from(false));
    }
    match b.kind() {
        ValueKind::Undefined | ValueKind::Plain => Ok(Value::from(false)),
        ValueKind::Map => {
            meter.work(CALL_WORK + walk(a))?;
            let object = b.as_object();
            Ok(Value::from(object.is_some_and(|object| object.get_value(a).is_some())))
        }
        _ => Err(refused("cannot perform a containment check on this value")),
    }
}

/// Evaluates `value[key]`.
pub(super) fn item(meter: &RenderMeter, value: &Value, key: &Value) -> Result<Value, Error> {
    let text_bytes = value.as_str().map_or(0, |text| 2 * units(text.len()));
    meter.work(NUMBER_WORK + text_bytes + walk(key))?;
    value.get_item(key)
}

/// Returns a bound of a slice; `None` if it is omitted.
fn bound(value: &Value) -> Result<Option<i64>, Error> {
    if value.is_none() { Ok(None) } else { i64::try_from(value.clone()).map(Some) }
}

/// Evaluates `value[start:stop:step]`, as in Python.
pub(super) fn slice(
    meter: &RenderMeter,
    value: &Value,
    bounds: [&Value; 3],
) -> Result<Value, Error> {
    let [start, stop, step] = bounds.map(bound);
    let (start, stop, step) = (start?, stop?, step?.unwrap_or(1));
    if step == 0 {
        return Err(refused("cannot slice by step size of 0"));
    }
    if let Some(text) = value.as_str() {
        meter.work(CALL_WORK + 3 * units(text.len()))?;
        let length = text.chars().count();
        let (first, count) = chosen(length, start, stop, step);
        meter.room(units(text.len()) * 2)?;
        let stride = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
        let text: String = if step > 0 {
            text.chars().skip(first).step_by(stride).take(count).collect()
        } else {
            let from_end = length.saturating_sub(first.saturating_add(1));
            text.chars().rev().skip(from_end).step_by(stride).take(count).collect()
        };
        return meter.text(text);
    }
    if let Some(items) = items(value) {
        let (first, count) = chosen(items.len(), start, stop, step);
        meter.work(CALL_WORK + 8 * units(count))?;
        meter.room(32 * units(count))?;
        let stride = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
        let part = if step > 0 {
            items.iter().skip(first).step_by(stride).take(count).cloned().collect()
        } else {
            let from_end = items.len().saturating_sub(first.saturating_add(1));
            items.iter().rev().skip(from_end).step_by(stride).take(count).cloned().collect()
        };
        let kind = match sequence_kind(value) {
            Some(SequenceKind::Tuple | SequenceKind::Group) => SequenceKind::Tuple,
            _ => SequenceKind::List,
        };
        return values::sequence(meter, part, kind);
    }
    match value.kind() {
        ValueKind::Undefined | ValueKind::None => values::list(meter, Vec::new()),
        kind => Err(refused(format!("value of type {kind} cannot be sliced"))),
    }
}

/// Returns the first index of a slice, and the number of items in its direction.
fn chosen(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> (usize, usize) {
    let length = i128::try_from(length).unwrap_or(i128::MAX);
    let step = i128::from(step);
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |bound: Option<i64>, otherwise: i128| match bound.map(i128::from) {
        None => otherwise,
        Some(bound) if bound < 0 => (bound + length).clamp(low, high),
        Some(bound) => bound.clamp(low, high),
    };
    let (from, to) = if step > 0 { (low, high) } else { (high, low) };
    let (first, end) = (place(start, from), place(stop, to));
    let count = ((end - first) * step.signum() + step.abs() - 1).max(0) / step.abs();
    (usize::try_from(first).unwrap_or(0), usize::try_from(count).unwrap_or(0))
}

/// Charges a loop, and returns the value to iterate over.
pub(super) fn iterated(meter: &RenderMeter, value: &Value) -> Result<Value, Error> {
    meter.work(CALL_WORK)?;
    if let Some(text) = value.as_str() {
        meter.work(2 * units(text.len()))?;
        return Ok(value.clone());
    }
    if values::is_map(value) {
        meter.work(8 * n_items(value))?;
    }
    Ok(value.clone())
}

/// Checks the value that `{% set a, b = value %}` unpacks.
pub(super) fn unpacked(meter: &RenderMeter, value: &Value, count: &Value) -> Result<Value, Error> {
    meter.work(2 * NUMBER_WORK)?;
    let n_items = value.as_object().and_then(|object| object.enumerator_len());
    match (n_items, count.as_usize()) {
        (Some(n_items), Some(count)) if n_items != count => {
            Err(refused(format!("sequence of wrong length (expected {count}, got {n_items})")))
        }
        _ => Ok(value.clone()),
    }
}

/// Returns a part of a text. If it is the whole text, it is not copied.
pub(super) fn part(meter: &RenderMeter, value: &Value, part: &str) -> Result<Value, Error> {
    if value.as_str().is_some_and(|text| text.len() == part.len()) {
        return Ok(value.clone());
    }
    meter.work(units(part.len()))?;
    meter.room(2 * units(part.len()))?;
    meter.text(part.to_owned())
}

/// Visits the elements of a value: items, keys or characters.
pub(super) fn each(
    meter: &RenderMeter,
    value: &Value,
    mut visit: impl FnMut(Value) -> Result<ControlFlow<()>, Error>,
) -> Result<(), Error> {
    if values::is_loop(value) {
        return Err(refused("a loop variable has no items"));
    }
    let value = keep(meter, iterated(meter, value)?)?;
    for item in value.try_iter()? {
        meter.work(20)?;
        if visit(item)?.is_break() {
            break;
        }
    }
    Ok(())
}
