//! Translates regular expressions of JSON Schema, which are those of JavaScript, to Rust's syntax.
//!
//! **Invariant:** the result matches exactly what JavaScript would match (with the flag `u`, but as
//! lenient about single brackets as without it), or there is an error that names the untranslatable
//! part. This module is independent of schemas.

use std::iter::Peekable;
use std::str::Chars;

/// Maximum size of an expression in bytes, far above any that is written by hand.
const PATTERN_BYTES_MAX: usize = 4_096;

/// Maximum number of characters that an expression may count, where those of a group count once per
/// repetition. Each is a state of the automaton.
const REPETITIONS_MAX: u64 = 20_000;

/// The characters that JavaScript's `\s` matches: whitespace and line ends.
const SPACE: &str = concat!(
    r"\t\n\x0B\x0C\r\x20\u{A0}\u{1680}\u{2000}-\u{200A}\u{2028}",
    r"\u{2029}\u{202F}\u{205F}\u{3000}\u{FEFF}"
);
const DIGIT: &str = "0-9";
const WORD: &str = "0-9A-Za-z_";
/// The characters that `.` does not match.
const LINE_ENDS: &str = r"\n\r\u{2028}\u{2029}";

/// Translates an expression to Rust's syntax.
///
/// # Errors
/// The part of the expression that has no equivalent in Rust.
pub(crate) fn translate(pattern: &str) -> Result<String, String> {
    if pattern.len() > PATTERN_BYTES_MAX {
        let n_bytes = pattern.len();
        return Err(format!("{n_bytes} bytes; the limit is {PATTERN_BYTES_MAX}"));
    }
    let mut reader =
        PatternReader { rest: pattern.chars().peekable(), sizes: vec![GroupSize::default()] };
    let mut out = String::with_capacity(pattern.len() + 16);
    while let Some(character) = reader.rest.next() {
        reader.translate_one(character, &mut out)?;
    }
    let n_states = reader.sizes.iter().fold(0, |sum: u64, it| sum.saturating_add(it.whole()));
    if n_states > REPETITIONS_MAX {
        return Err(format!("more than {REPETITIONS_MAX} repetitions in total"));
    }
    Ok(out)
}

/// Reads an expression and counts its characters.
struct PatternReader<'p> {
    rest: Peekable<Chars<'p>>,
    /// The sizes of the whole expression and of the open groups, outermost first.
    sizes: Vec<GroupSize>,
}

/// The number of characters that a group counts.
#[derive(Clone, Copy, Debug, Default)]
struct GroupSize {
    before: u64,
    /// The size of the last part, to which a following repetition applies.
    last: u64,
}

impl GroupSize {
    fn whole(self) -> u64 {
        self.before.saturating_add(self.last)
    }
}

/// The meaning of an escape.
enum Escaped {
    One(char),
    /// Members of a class in Rust's syntax, and whether it is negated.
    Set(&'static str, bool),
    /// A Unicode property in Rust's syntax.
    Property(String),
}

impl PatternReader<'_> {
    fn translate_one(&mut self, character: char, out: &mut String) -> Result<(), String> {
        match character {
            '{' => {
                self.repetition(out);
                return Ok(());
            }
            '(' => self.sizes.push(GroupSize::default()),
            ')' => self.leave_group(),
            '^' | '$' | '|' | '*' | '+' | '?' => {}
            _ => self.add_part(1),
        }
        match character {
            '\\' => match self.escaped(EscapeContext::Outside)? {
                Escaped::One(character) => push_literal(character, out),
                Escaped::Set(set, is_negated) => push_class(set, is_negated, out),
                Escaped::Property(property) => out.push_str(&property),
            },
            '.' => push_class(LINE_ENDS, true, out),
            '[' => self.class(out)?,
            '(' => self.group(out)?,
            '^' | '$' | ')' | '|' | '*' | '+' | '?' => out.push(character),
            literal => push_literal(literal, out),
        }
        Ok(())
    }

    fn add_part(&mut self, n_states: u64) {
        let size = self.sizes.last_mut().expect("the whole expression is never left");
        *size = GroupSize { before: size.whole(), last: n_states };
    }

    fn leave_group(&mut self) {
        // A surplus bracket is an error that the compiler of the expression reports.
        if self.sizes.len() > 1 {
            let group = self.sizes.pop().map_or(0, GroupSize::whole);
            self.add_part(group);
        }
    }

    /// Translates the text after `(`.
    fn group(&mut self, out: &mut String) -> Result<(), String> {
        out.push('(');
        if self.rest.next_if_eq(&'?').is_none() {
            return Ok(());
        }
        match (self.rest.next(), self.rest.peek()) {
            (Some(':'), _) => out.push_str("?:"),
            (Some('='), _) => return Err("a lookahead `(?=`".to_owned()),
            (Some('!'), _) => return Err("a lookahead `(?!`".to_owned()),
            (Some('<'), Some('=' | '!')) => return Err("a lookbehind `(?<`".to_owned()),
            (Some('<'), _) => {
                // The name of a group has no use here.
                while self.rest.next().ok_or("a group without an end")? != '>' {}
            }
            _ => return Err("a group with flags `(?`".to_owned()),
        }
        Ok(())
    }

    /// Translates the text after `{`: counts, or else a literal brace.
    fn repetition(&mut self, out: &mut String) {
        let is_of_count = |it: &char| it.is_ascii_digit() || *it == ',';
        let ahead: String = self.rest.clone().take_while(is_of_count).collect();
        let (least, most) = ahead.split_once(',').unwrap_or((&ahead, &ahead));
        let is_closed = self.rest.clone().nth(ahead.len()) == Some('}');
        if !is_closed || least.is_empty() || most.contains(',') {
            self.add_part(1);
            push_literal('{', out);
            return;
        }
        let count = |text: &str| text.parse().unwrap_or(u64::MAX);
        let n_most = if most.is_empty() { count(least) } else { count(most) };
        let size = self.sizes.last_mut().expect("the whole expression is never left");
        size.last = size.last.saturating_mul(n_most.max(1));
        out.push('{');
        out.push_str(&ahead);
        out.push('}');
        self.rest.nth(ahead.len());
    }

    /// Translates the text after `[`.
    fn class(&mut self, out: &mut String) -> Result<(), String> {
        let is_negated = self.rest.next_if_eq(&'^').is_some();
        if self.rest.next_if_eq(&']').is_some() {
            // Matches nothing, or any character.
            out.push_str(if is_negated { "(?s:.)" } else { "[a&&b]" });
            return Ok(());
        }
        out.push_str(if is_negated { "[^" } else { "[" });
        loop {
            let first = match self.rest.next().ok_or("a class without an end")? {
                ']' => break,
                first => self.member(first)?,
            };
            let Escaped::One(first) = first else {
                push_members(&first, out);
                self.after_class(out)?;
                continue;
            };
            let mut ahead = self.rest.clone();
            let is_range = ahead.next() == Some('-') && !matches!(ahead.next(), Some(']') | None);
            push_code(first, out);
            if is_range {
                self.rest.next();
                let last = self.rest.next().ok_or("a class without an end")?;
                let Escaped::One(last) = self.member(last)? else {
                    return Err("a range that ends with a class".to_owned());
                };
                out.push('-');
                push_code(last, out);
            }
        }
        out.push(']');
        Ok(())
    }

    /// A dash after a class does not begin a range, nor does the member after it.
    fn after_class(&mut self, out: &mut String) -> Result<(), String> {
        if self.rest.next_if_eq(&'-').is_none() {
            return Ok(());
        }
        push_code('-', out);
        if let Some(next) = self.rest.next_if(|it| *it != ']') {
            let next = self.member(next)?;
            push_members(&next, out);
        }
        Ok(())
    }

    fn member(&mut self, character: char) -> Result<Escaped, String> {
        if character == '\\' {
            self.escaped(EscapeContext::Class)
        } else {
            Ok(Escaped::One(character))
        }
    }

    /// Reads the text after `\`.
    fn escaped(&mut self, context: EscapeContext) -> Result<Escaped, String> {
        let character = self.rest.next().ok_or("a `\\` at its end")?;
        Ok(match character {
            'd' => Escaped::Set(DIGIT, false),
            'D' => Escaped::Set(DIGIT, true),
            'w' => Escaped::Set(WORD, false),
            'W' => Escaped::Set(WORD, true),
            's' => Escaped::Set(SPACE, false),
            'S' => Escaped::Set(SPACE, true),
            't' => Escaped::One('\t'),
            'n' => Escaped::One('\n'),
            'r' => Escaped::One('\r'),
            'f' => Escaped::One('\u{c}'),
            'v' => Escaped::One('\u{b}'),
            'b' if context == EscapeContext::Class => Escaped::One('\u{8}'),
            'x' => Escaped::One(self.code(2)?),
            'u' => Escaped::One(self.unicode()?),
            'c' => Escaped::One(self.control()?),
            'p' | 'P' => Escaped::Property(self.property(character)?),
            '0' if !self.rest.peek().is_some_and(char::is_ascii_digit) => Escaped::One('\0'),
            other if !other.is_alphanumeric() => Escaped::One(other),
            other => return Err(format!("the escape `\\{other}`")),
        })
    }

    /// Reads a character with this number of hexadecimal digits.
    fn code(&mut self, n_digits: usize) -> Result<char, String> {
        let code = self.hex(n_digits)?;
        char::from_u32(code).ok_or_else(|| format!("a lone surrogate, `\\u{code:04X}`"))
    }

    fn hex(&mut self, n_digits: usize) -> Result<u32, String> {
        let digits: String = self.rest.by_ref().take(n_digits).collect();
        let is_hex = digits.len() == n_digits && digits.bytes().all(|it| it.is_ascii_hexdigit());
        let code = u32::from_str_radix(&digits, 16).ok().filter(|_| is_hex);
        code.ok_or_else(|| format!("an escape with `{digits}` instead of digits"))
    }

    /// Reads the text after `\u`: four digits, two times four, or any number in braces.
    fn unicode(&mut self) -> Result<char, String> {
        if self.rest.next_if_eq(&'{').is_some() {
            let digits: String = self.rest.by_ref().take_while(|it| *it != '}').collect();
            let character = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
            return character.ok_or_else(|| format!("the escape `\\u{{{digits}}}`"));
        }
        let high = self.hex(4)?;
        if !(0xd800..0xdc00).contains(&high) {
            return char::from_u32(high).ok_or_else(|| format!("a lone surrogate, {high:04X}"));
        }
        let is_pair = self.rest.next() == Some('\\') && self.rest.next() == Some('u');
        let low = if is_pair { self.hex(4)? } else { 0 };
        let pair = char::decode_utf16([high, low].map(|it| u16::try_from(it).unwrap_or(0)));
        let mut pair = pair.filter_map(Result::ok);
        pair.next().filter(|_| low != 0).ok_or_else(|| format!("a lone surrogate, {high:04X}"))
    }

    fn control(&mut self) -> Result<char, String> {
        let letter = self.rest.next().filter(char::is_ascii_alphabetic);
        let code = letter.and_then(|it| u8::try_from(it).ok()).map(|it| it & 0x1f);
        code.map(char::from).ok_or_else(|| "the escape `\\c` without a letter".to_owned())
    }

    fn property(&mut self, kind: char) -> Result<String, String> {
        if self.rest.next_if_eq(&'{').is_none() {
            return Err(format!("the escape `\\{kind}` without a property"));
        }
        let name: String = self.rest.by_ref().take_while(|it| *it != '}').collect();
        if name.is_empty()
            || !name.bytes().all(|it| it.is_ascii_alphanumeric() || b"_=".contains(&it))
        {
            return Err(format!("the property `{name}`"));
        }
        Ok(format!("\\{kind}{{{name}}}"))
    }
}

/// Where an escape stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum EscapeContext {
    Outside,
    Class,
}

fn push_class(set: &str, is_negated: bool, out: &mut String) {
    out.push_str(if is_negated { "[^" } else { "[" });
    out.push_str(set);
    out.push(']');
}

fn push_members(members: &Escaped, out: &mut String) {
    match members {
        Escaped::One(character) => push_code(*character, out),
        Escaped::Set(set, is_negated) => push_class(set, *is_negated, out),
        Escaped::Property(property) => out.push_str(property),
    }
}

/// Writes a character by its code if it might have another meaning in a class.
fn push_code(character: char, out: &mut String) {
    if character.is_ascii_alphanumeric() {
        out.push(character);
    } else {
        out.push_str(&format!("\\x{{{:X}}}", u32::from(character)));
    }
}

fn push_literal(character: char, out: &mut String) {
    if character.is_ascii() && !character.is_ascii_alphanumeric() {
        push_code(character, out);
    } else {
        out.push(character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_translated_to_rusts_syntax() {
        let check = |pattern: &str, expected: &str| {
            assert_eq!(translate(pattern).as_deref(), Ok(expected), "{pattern}");
        };
        check("^a+(b|c)*?$", "^a+(b|c)*?$");
        check("a{2}b{2,}c{2,3}", "a{2}b{2,}c{2,3}");
        check("a{,3}{x}{", r"a\x{7B}\x{2C}3\x{7D}\x{7B}x\x{7D}\x{7B}");
        check(r"\d\D\w", "[0-9][^0-9][0-9A-Za-z_]");
        check(".", r"[^\n\r\u{2028}\u{2029}]");
        check(r"\.\/\<\-]", r"\x{2E}\x{2F}\x{3C}\x{2D}\x{5D}");
        check("[a&&b[~~]", r"[a\x{26}\x{26}b\x{5B}\x{7E}\x{7E}]");
        check(r"[^\w\b-]", r"[^[0-9A-Za-z_]\x{8}\x{2D}]");
        check(r"[\d-x]", r"[[0-9]\x{2D}x]");
        check(r"[\d-x-z]", r"[[0-9]\x{2D}x\x{2D}z]");
        check(r"[\d-]", r"[[0-9]\x{2D}]");
        check("[a-c-]", r"[a-c\x{2D}]");
        check("[^]", "(?s:.)");
        check("(?<year>a)(?:b)", "(a)(?:b)");
        check(r"\u00e9\x41\u{1F600}\ud83d\ude00\cJ\0", "\u{e9}A\u{1f600}\u{1f600}\\x{A}\\x{0}");
        check(r"\p{L}[\P{Nd}]", r"\p{L}[\P{Nd}]");
    }

    #[test]
    fn counts_are_added_up_and_multiplied_only_where_they_are_in_each_other() {
        let email = r"^[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9.-]{1,255}\.[A-Za-z]{2,63}$";
        for pattern in [email, "^[A-Z]{1,30} [A-Z]{1,30} [A-Z]{1,30}$", "(a{99}b){200}", "a{20000}"]
        {
            assert!(translate(pattern).is_ok(), "{pattern}");
        }
        for pattern in ["(a{100}b){200}", "a{20001}", "a{10000}(b|c{10001})", "((a{30}){30}){30}"] {
            assert!(translate(pattern).unwrap_err().contains("repetitions"), "{pattern}");
        }
        let many = "{1".repeat(PATTERN_BYTES_MAX / 2);
        assert_eq!(translate(&many).unwrap(), r"\x{7B}1".repeat(PATTERN_BYTES_MAX / 2));
    }

    #[test]
    fn untranslatable_parts_of_patterns_are_named() {
        let check = |pattern: &str, expected: &str| {
            let problem = translate(pattern).unwrap_err();
            assert!(problem.contains(expected), "{pattern}: {problem}");
        };
        check("(?=a)", "lookahead");
        check("(?!a)", "lookahead");
        check("(?<=a)", "lookbehind");
        check("(?i)a", "flags");
        check(r"\bword", "`\\b`");
        check(r"(a)\1", "`\\1`");
        check(r"\k<a>", "`\\k`");
        check(r"\a", "`\\a`");
        check(r"\ud83d", "lone surrogate");
        check(r"\ud83dx", "lone surrogate");
        check("[a", "without an end");
        check("a\\", "at its end");
        check("(a{200}){200}", "repetitions");
        check(&"a".repeat(PATTERN_BYTES_MAX + 1), "the limit is 4096");
    }
}
