//! Grammars in llguidance's dialect of Lark: those of clients are checked, and literals are written
//! for our own.
//!
//! **Invariant:** a checked grammar cannot make llguidance call itself so often that a thread's
//! stack is used up; schemas inside it are held to the rules of [`crate::grammar::schema`]. What is
//! wrong with a grammar otherwise, llguidance says.

use serde_json::{Deserializer, Value as Json};

use crate::grammar::schema::{self, Unenforced};

/// Most bytes of a client's grammar.
const GRAMMAR_BYTES_MAX: usize = 64 << 10;

/// Most bytes of a client's regular expression.
const REGEX_BYTES_MAX: usize = 16 << 10;

/// Most brackets in each other.
const NESTING_MAX: usize = 64;

/// Most rules and terminals: llguidance follows them from one to the next.
const RULES_MAX: usize = 500;

/// What begins a schema in a grammar.
const JSON: &str = "%json";

/// A client's grammar, with its schemas cleaned.
///
/// # Errors
/// A limit that it exceeds, or what [`schema::prepare`] refuses.
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
            return Err(format!("it has more than {NESTING_MAX} brackets in each other"));
        }
    }
    Ok(())
}

/// Checks a client's regular expression.
///
/// # Errors
/// A limit that it exceeds.
pub(crate) fn check_regex(regex: &str) -> Result<(), String> {
    if regex.len() > REGEX_BYTES_MAX {
        let n_bytes = regex.len();
        return Err(format!("it has {n_bytes} bytes; the limit is {REGEX_BYTES_MAX}"));
    }
    check_nesting(regex)
}

/// A text as a literal.
pub(crate) fn literal(text: &str) -> String {
    // A delete character may stand in JSON as it is, but not in Lark.
    format!("{} ", Json::from(text)).replace('\u{7f}', "\\u007f")
}
