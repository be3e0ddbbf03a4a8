//! Methods and tests of Python that templates use and minijinja does not have.
//!
//! **Invariant:** a method that is here behaves as Python's on the values a template can have;
//! all others are those of minijinja's own Python set.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// Called for a method that minijinja does not know.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let own = match (value.kind(), value.as_str()) {
        (_, Some(text)) => string_method(text, name, args)?,
        (ValueKind::Seq, _) => sequence_method(value, name, args)?,
        (ValueKind::Map, _) if name == "copy" => {
            let () = from_args(args)?;
            Some(value.clone())
        }
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let parts = if name == "partition" {
                text.split_once(separator).map(|(left, right)| [left, separator, right])
            } else {
                text.rsplit_once(separator).map(|(left, right)| [left, separator, right])
            };
            let unfound = if name == "partition" { [text, "", ""] } else { ["", "", text] };
            Value::from(parts.unwrap_or(unfound).map(Value::from).to_vec())
        }
        "rsplit" => {
            let (separator, count): (&str, Option<i64>) = from_args(args)?;
            if separator.is_empty() {
                return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
            }
            let count = count.and_then(|count| usize::try_from(count).ok());
            let most = count.map_or(usize::MAX, |count| count.saturating_add(1));
            let mut parts: Vec<Value> = text.rsplitn(most, separator).map(Value::from).collect();
            parts.reverse();
            Value::from(parts)
        }
        "index" => {
            let (part,): (&str,) = from_args(args)?;
            let at = text.find(part).ok_or_else(|| not_found("substring"))?;
            Value::from(text[..at].chars().count())
        }
        _ => return Ok(None),
    }))
}

fn sequence_method(value: &Value, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    match name {
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let place = value.try_iter()?.position(|item| item == *wanted);
            place.map(|place| Some(Value::from(place))).ok_or_else(|| not_found("value"))
        }
        "copy" => {
            let () = from_args(args)?;
            Ok(Some(value.clone()))
        }
        _ => Ok(None),
    }
}

fn not_found(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("index: {what} not found"))
}

/// Jinja's test: what has a length and items, so strings and mappings too.
pub(super) fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

/// Jinja's test: what a loop accepts, so strings too.
pub(super) fn is_iterable(value: &Value) -> bool {
    value.kind() == ValueKind::Iterable || is_sequence(value)
}
