//! Grammars in llguidance's dialect of Lark: checks those of clients, and writes literals for our
//! own.
//!
//! **Invariant:** a checked grammar cannot make llguidance overflow a thread's stack by recursion;
//! schemas inside it follow the rules of [`crate::grammar::schema`]. llguidance reports all other
//! errors of a grammar.

use serde_json::{Deserializer, Value as Json};

use crate::grammar::schema::{self, Unenforced};

/// Maximum size of a client's grammar in bytes.
const GRAMMAR_BYTES_MAX: usize = 64 << 10;

/// Maximum size of a client's regular expression in bytes.
const REGEX_BYTES_MAX: usize = 16 << 10;

/// Maximum nesting depth of brackets.
const NESTING_MAX: usize = 64;

/// Maximum number of rules and terminals, which llguidance follows recursively.
const RULES_MAX: usize = 500;

/// The keyword before a schema in a grammar.
const JSON: &str = "%json";

/// Returns a client's grammar with its schemas cleaned.
///
/// # Errors
/// The limit that it exceeds, or an error of [`schema::prepare`].
pub(crate) fn check_grammar(grammar: &str) -> Result<String, String> {
    if grammar.len() > GRAMMAR_BYTES_MAX {
        let n_bytes = grammar.len();
        return Err(format!("it has {n_bytes} bytes; the limit is {GRAMMAR_BYTES_MAX}"));
    }
    let n_rules = grammar.lines().filter(|line| line.contains(':')).count();
    if n_rules > RULES_MAX {
        return Err(format!("it has {n_rules} rules; the limit is {RULES_MAX}"));
    }
    let mut cleaned = String::with_capacity(grammar.len());
    let mut rest = grammar;
    while let Some(at) = rest.find(JSON) {
        let (before, from) = rest.split_at(at + JSON.len());
        cleaned.push_str(before);
        rest = from;
        let mut values = Deserializer::from_str(from).into_iter::<Json>();
        if let Some(Ok(schema @ Json::Object(_))) = values.next() {
            rest = &from[values.byte_offset()..];
            let schema = schema::prepare(&schema, Unenforced::Refused)?;
            cleaned.push_str(&format!(" {schema}"));
        }
    }
    cleaned.push_str(rest);
    check_nesting(&cleaned)?;
    Ok(cleaned)
}

fn check_nesting(grammar: &str) -> Result<(), String> {
    let mut depth = 0usize;
    for byte in grammar.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTING_MAX {
            return Err(format!("it has brackets nested more than {NESTING_MAX} deep"));
        }
    }
    Ok(())
}

/// Checks a client's regular expression.
///
/// # Errors
/// The limit that it exceeds.
pub(crate) fn check_regex(regex: &str) -> Result<(), String> {
    if regex.len() > REGEX_BYTES_MAX {
        let n_bytes = regex.len();
        return Err(format!("it has {n_bytes} bytes; the limit is {REGEX_BYTES_MAX}"));
    }
    check_nesting(regex)
}

/// Writes a text as a literal.
pub(crate) fn literal(text: &str) -> String {
    // JSON allows a raw delete character, Lark does not.
    format!("{} ", Json::from(text)).replace('\u{7f}', "\\u007f")
}
