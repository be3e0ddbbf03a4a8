//! Python's methods and tests that templates use and minijinja lacks.
//!
//! **Invariant:** a method implemented here behaves like Python's for the values of templates; all
//! others are those of minijinja's own Python set. Each is charged in advance.

use std::ops::ControlFlow;

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use crate::text::template::charges;
use crate::text::template::filters::{joined, replaced};
use crate::text::template::meter::{RenderMeter, refused, units};
use crate::text::template::operators::{CALL_WORK, each, is_same, part};
use crate::text::template::values::{self, is_loop, keep, n_items, walk};

/// Evaluates `value.name(args)`.
pub(super) fn method(
    meter: &RenderMeter,
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    meter.work(CALL_WORK)?;
    if is_loop(value) {
        return loop_method(meter, state, value, name, args);
    }
    let own = match (value.kind(), value.as_str()) {
        (_, Some(text)) => string_method(meter, value, text, name, args)?,
        (ValueKind::Seq, _) => sequence_method(meter, value, name, args)?,
        (ValueKind::Map, _) => map_method(meter, value, name, args)?,
        _ => None,
    };
    if let Some(result) = own {
        return Ok(result);
    }
    let whole: Vec<Value> = [std::slice::from_ref(value), args].concat();
    charge(name)(meter, &whole)?;
    let result = minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args);
    match result {
        // A function or macro in a map or namespace.
        Err(error) if error.kind() == ErrorKind::UnknownMethod => {
            let held = value.as_object().and_then(|object| object.get_value_by_str(name));
            match held {
                Some(function) => function.call(state, args),
                None => Err(Error::new(
                    ErrorKind::UnknownMethod,
                    format!("{} has no method named {name}", value.kind()),
                )),
            }
        }
        result => keep(meter, result?),
    }
}

/// Returns the charge for a method of the library.
fn charge(name: &str) -> charges::Charge {
    match name {
        "upper" | "lower" | "title" | "capitalize" => charges::letters,
        "split" | "splitlines" => charges::pieces,
        "format" => charges::format,
        "strip" | "lstrip" | "rstrip" => charges::trimmed,
        "keys" | "values" | "items" => charges::items,
        _ => charges::text,
    }
}

fn loop_method(
    meter: &RenderMeter,
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    // Otherwise the loop would hold itself, directly or indirectly.
    let is_held = |arg: &Value| is_loop(arg) || arg.is_kwargs();
    if args.is_empty() || args.iter().any(is_held) {
        return Err(refused(format!("loop.{name}: needs values that are not loop variables")));
    }
    for arg in args {
        meter.work(walk(arg).saturating_mul(6))?;
    }
    value.call_method(state, name, args)
}

fn parts(meter: &RenderMeter, parts: &mut dyn Iterator<Item = &str>) -> Result<Value, Error> {
    let mut made = Vec::new();
    for part in parts {
        meter.work(60 + units(part.len()))?;
        meter.room(2 * units(part.len()) + if made.len() == made.capacity() { 64 } else { 0 })?;
        made.push(meter.text(part.to_owned())?);
    }
    values::list(meter, made)
}

fn string_method(
    meter: &RenderMeter,
    value: &Value,
    text: &str,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            part(meter, value, text.strip_prefix(prefix).unwrap_or(text))?
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            part(meter, value, text.strip_suffix(suffix).unwrap_or(text))?
        }
        "strip" | "lstrip" | "rstrip" if args.is_empty() => {
            meter.work(units(text.len()))?;
            let stripped = match name {
                "strip" => text.trim(),
                "lstrip" => text.trim_start(),
                _ => text.trim_end(),
            };
            part(meter, value, stripped)?
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            meter.work(2 * units(text.len() + separator.len()))?;
            let found = if name == "partition" {
                text.split_once(separator).map(|(left, right)| [left, separator, right])
            } else {
                text.rsplit_once(separator).map(|(left, right)| [left, separator, right])
            };
            let unfound = if name == "partition" { [text, "", ""] } else { ["", "", text] };
            parts(meter, &mut found.unwrap_or(unfound).into_iter())?
        }
        "rsplit" => {
            let (separator, count): (&str, Option<i64>) = from_args(args)?;
            if separator.is_empty() {
                return Err(refused("empty separator"));
            }
            meter.work(2 * units(text.len() + separator.len()))?;
            let count = count.and_then(|count| usize::try_from(count).ok());
            let most = count.map_or(usize::MAX, |count| count.saturating_add(1));
            let pieces = parts(meter, &mut text.rsplitn(most, separator))?;
            let reversed = values::items(&pieces).unwrap_or(&[]).iter().rev().cloned().collect();
            values::list(meter, reversed)?
        }
        "index" => index(meter, text, args)?,
        "replace" => {
            let (from, to, count): (&str, &str, Option<i32>) = from_args(args)?;
            let n_max = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
            replaced(meter, value, from, to, n_max)?
        }
        "join" => {
            let (of,): (&Value,) = from_args(args)?;
            let mut parts = Vec::new();
            each(meter, of, |item| {
                if parts.len() == parts.capacity() {
                    meter.room(64 * units(parts.len()))?;
                }
                parts.push(item);
                Ok(ControlFlow::Continue(()))
            })?;
            joined(meter, &parts, value)?
        }
        "startswith" | "endswith" => {
            let (given,): (&Value,) = from_args(args)?;
            // The library tries each prefix of a tuple.
            meter.work(n_items(given).saturating_mul(20).saturating_add(walk(given)))?;
            return Ok(None);
        }
        _ => return Ok(None),
    }))
}

fn index(meter: &RenderMeter, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (part,): (&str,) = from_args(args)?;
    meter.work(2 * units(text.len() + part.len()))?;
    let at = text.find(part).ok_or_else(|| not_found("substring"))?;
    Ok(Value::from(text[..at].chars().count()))
}

fn sequence_method(
    meter: &RenderMeter,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    match name {
        "index" | "count" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let items = values::items(value).unwrap_or(&[]);
            let mut places = Vec::new();
            for (place, item) in items.iter().enumerate() {
                if is_same(meter, item, wanted)? {
                    meter.room(16 * units(places.len()))?;
                    places.push(place);
                }
            }
            if name == "count" {
                return Ok(Some(Value::from(places.len())));
            }
            let first = places.first().ok_or_else(|| not_found("value"))?;
            Ok(Some(Value::from(*first)))
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(Some(value.clone()))
        }
        _ => Ok(None),
    }
}

fn map_method(
    meter: &RenderMeter,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    if name == "copy" {
        let () = from_args(args)?;
        return Ok(Some(value.clone()));
    }
    if name == "get" {
        let (key, default): (&Value, Option<Value>) = from_args(args)?;
        meter.work(walk(key))?;
        let found = value.as_object().and_then(|object| object.get_value(key));
        return Ok(Some(found.unwrap_or_else(|| default.unwrap_or_else(|| Value::from(())))));
    }
    Ok(None)
}

fn not_found(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("index: {what} not found"))
}

/// Jinja's test for values with a length and items, which include strings and mappings.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

/// Jinja's test for values that a loop accepts, which include strings.
pub(super) fn is_iterable(value: &Value) -> bool {
    value.kind() == ValueKind::Iterable || is_sequence(value)
}
