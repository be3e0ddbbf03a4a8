//! `tojson` as transformers defines it: Python's `json.dumps` without escaping non-ASCII text.
//!
//! **Invariant:** the text equals Python's byte for byte, including spaces after separators,
//! because models were trained on it. minijinja's own filter escapes `<`, `>` and `&` for web
//! pages.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Value};

use crate::text::template::meter::{RenderMeter, units};
use crate::text::template::values::walk;

/// Maximum nesting; messages are parsed with the same limit.
const DEPTH_MAX: usize = 128;
/// Work per value, and per byte of a string.
const VALUE_WORK: u64 = 60;
const STRING_WORK: u64 = 4;

/// The filter, with the arguments of `json.dumps` that templates use.
pub(super) fn tojson(meter: &RenderMeter, args: &[Value]) -> Result<Value, Error> {
    let (value, options): (&Value, Kwargs) = from_args(args)?;
    let indent: Option<Value> = options.get("indent")?;
    let indent = indent.filter(|indent| !indent.is_none());
    let indent = match indent {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_owned),
        Some(count) => Some(" ".repeat(usize::try_from(count)?.min(DEPTH_MAX))),
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (between, after_key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }, ": "),
        Some([between, after_key]) => (between.as_str(), after_key.as_str()),
        Some(_) => return Err(refused("separators must be two strings")),
    };
    let mut writer = JsonWriter {
        meter,
        out: String::new(),
        indent: indent.as_deref(),
        between,
        after_key,
        is_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        is_sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    writer.value(value, 0)?;
    meter.text(writer.out)
}

fn refused(why: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("tojson: {why}"))
}

fn is_escaped(character: char, is_ascii: bool) -> bool {
    matches!(character, '"' | '\\' | '\0'..'\u{20}') || (is_ascii && character > '\u{7f}')
}

/// Writes a value as Python's `json.dumps` does.
struct JsonWriter<'a> {
    meter: &'a RenderMeter,
    out: String,
    indent: Option<&'a str>,
    between: &'a str,
    after_key: &'a str,
    is_ascii: bool,
    is_sorted: bool,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(refused("nested too deeply"));
        }
        self.meter.work(VALUE_WORK)?;
        // The longest number, and the separators and indentation around an item.
        self.reserve(400 + self.between.len() + self.after_key.len() + self.line_bytes(depth))?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => self.out.push_str(&value.to_string()),
            ValueKind::Number => self.float(f64::try_from(value.clone())?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default())?,
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            kind => return Err(refused(&format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut is_empty = true;
        for item in value.try_iter()? {
            self.separate(is_empty, depth + 1);
            is_empty = false;
            self.value(&item, depth + 1)?;
        }
        self.close(']', is_empty, depth);
        Ok(())
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.meter.room(64 * units(value.len().unwrap_or(0)))?;
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.is_sorted {
            let rounds = u64::from(keys.len().max(1).ilog2() + 1);
            self.meter.work(walk(value).saturating_mul(6 * rounds))?;
            keys.sort();
        }
        self.out.push('{');
        for (index, key) in keys.iter().enumerate() {
            self.separate(index == 0, depth + 1);
            self.key(key)?;
            self.out.push_str(self.after_key);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        self.close('}', keys.is_empty(), depth);
        Ok(())
    }

    /// Writes a key. Like Python, it writes simple keys other than strings as their JSON in quotes.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default())?,
            ValueKind::None | ValueKind::Bool | ValueKind::Number => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            kind => return Err(refused(&format!("a key cannot be {kind}"))),
        }
        Ok(())
    }

    fn separate(&mut self, is_first: bool, depth: usize) {
        if !is_first {
            self.out.push_str(self.between);
        }
        self.new_line(depth);
    }

    fn close(&mut self, bracket: char, is_empty: bool, depth: usize) {
        if !is_empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    /// Returns the length of the indentation of a line and of the next closing bracket.
    fn line_bytes(&self, depth: usize) -> usize {
        self.indent.map_or(0, |indent| 2 * (indent.len() * (depth + 1) + 1))
    }

    /// Requests memory before the text grows.
    fn reserve(&mut self, bytes: usize) -> Result<(), Error> {
        self.meter.work(units(bytes) / 4)?;
        let wanted = self.out.len() + bytes;
        if wanted > self.out.capacity() {
            self.meter.room(units(wanted).saturating_mul(3))?;
            self.out.reserve(bytes);
        }
        Ok(())
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent, depth));
        }
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        // Escapes are rare: the estimate is the text's length plus the growth by escapes.
        self.meter.work(units(text.len()).saturating_mul(STRING_WORK))?;
        let n_escaped = text.chars().filter(|it| is_escaped(*it, self.is_ascii)).count();
        self.reserve(text.len() + 12 * n_escaped + 2)?;
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                '\0'..=' ' if character != ' ' => self.escape(character),
                '\u{7f}'.. if self.is_ascii && character != '\u{7f}' => self.escape(character),
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
        Ok(())
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _infallible = write!(self.out, "\\u{unit:04x}");
        }
    }

    /// Writes a float in Python's shortest form: with an exponent of at least two digits from 1e16
    /// on and below 1e-4.
    fn float(&mut self, number: f64) {
        if number.is_nan() {
            return self.out.push_str("NaN");
        }
        if number.is_infinite() {
            return self.out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
        }
        let scientific = format!("{number:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        if (-4..16).contains(&exponent) || number == 0.0 {
            self.out.push_str(&format!("{number:?}"));
        } else {
            let sign = if exponent < 0 { '-' } else { '+' };
            let _infallible = write!(self.out, "{digits}e{sign}{:02}", exponent.abs());
        }
    }
}
