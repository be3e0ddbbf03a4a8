//! Splits Rust or WGSL text into code, comments and literals.
//!
//! **Invariant:** both views have the lines of the text, at the same columns; text outside a view
//! is blank. This module knows tokens only, no grammar.

/// The two views of a source text.
#[derive(Debug)]
pub(super) struct Views {
    /// Code, with comments and the contents of literals blank.
    pub(super) code: String,
    /// Comments alone.
    pub(super) comments: String,
    /// Number of lines that hold more than comments and blanks.
    pub(super) n_code_lines: usize,
}

/// The kind of the text that a byte belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SpanKind {
    Code,
    Comment,
    Literal,
}

/// Splits `text` into its views.
pub(super) fn split(text: &str) -> Views {
    let kinds = kinds(text.as_bytes());
    Views {
        code: view(text, &kinds, SpanKind::Code),
        comments: view(text, &kinds, SpanKind::Comment),
        n_code_lines: n_code_lines(text, &kinds),
    }
}

/// Returns the byte offsets of `word` in `code` without a letter, digit or `_` beside it.
pub(super) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// Whether a character may be part of an identifier.
pub(super) fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Returns the identifier at the beginning of `text`, possibly empty.
pub(super) fn leading_word(text: &str) -> &str {
    &text[..text.find(|it| !is_word(it)).unwrap_or(text.len())]
}

/// Returns the line number, from 1, of a byte offset.
pub(super) fn line_number(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Returns the text between the opening bracket at `open_at` and its closing bracket.
pub(super) fn bracketed(code: &str, open_at: usize) -> &str {
    let mut depth = 0;
    for (at, character) in code[open_at..].char_indices() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &code[open_at + 1..open_at + at.max(1)];
        }
    }
    &code[open_at + 1..]
}

fn view(text: &str, kinds: &[SpanKind], wanted: SpanKind) -> String {
    let keep = |(at, character): (usize, char)| {
        if character == '\n' || kinds[at] == wanted {
            character.to_string()
        } else {
            " ".repeat(character.len_utf8())
        }
    };
    text.char_indices().map(keep).collect()
}

fn n_code_lines(text: &str, kinds: &[SpanKind]) -> usize {
    let mut at = 0;
    let mut n = 0;
    for line in text.split_inclusive('\n') {
        let mut bytes = line.bytes().zip(&kinds[at..]);
        n += usize::from(
            bytes.any(|(byte, &kind)| kind != SpanKind::Comment && !byte.is_ascii_whitespace()),
        );
        at += line.len();
    }
    n
}

fn kinds(bytes: &[u8]) -> Vec<SpanKind> {
    let mut kinds = vec![SpanKind::Code; bytes.len()];
    let mut at = 0;
    while at < bytes.len() {
        let (kind, len) = token(bytes, at);
        let end = (at + len).min(bytes.len());
        kinds[at..end].fill(kind);
        at = end;
    }
    kinds
}

/// Returns the kind and length of the token at `at`.
fn token(bytes: &[u8], at: usize) -> (SpanKind, usize) {
    let rest = &bytes[at..];
    match rest[0] {
        b'/' if rest.starts_with(b"//") => (SpanKind::Comment, line_len(rest)),
        b'/' if rest.starts_with(b"/*") => (SpanKind::Comment, block_comment_len(rest)),
        b'"' => (SpanKind::Literal, quoted_len(rest, b'"')),
        b'\'' => char_len(rest).map_or((SpanKind::Code, 1), |len| (SpanKind::Literal, len)),
        byte if is_word_byte(byte) => {
            let word_len = rest.iter().position(|&it| !is_word_byte(it)).unwrap_or(rest.len());
            let is_raw = matches!(&rest[..word_len], b"r" | b"br" | b"cr");
            let raw = is_raw.then(|| raw_string_len(&rest[word_len..])).flatten();
            raw.map_or((SpanKind::Code, word_len), |len| (SpanKind::Literal, word_len + len))
        }
        _ => (SpanKind::Code, 1),
    }
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn line_len(rest: &[u8]) -> usize {
    rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
}

fn block_comment_len(rest: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        let step = &rest[at..];
        let is_edge = step.starts_with(b"/*") || step.starts_with(b"*/");
        if step.starts_with(b"/*") {
            depth += 1;
        } else if step.starts_with(b"*/") {
            depth -= 1;
        }
        at += if is_edge { 2 } else { 1 };
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted_len(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Returns the length of a character literal; `None` for a lifetime or a label.
fn char_len(rest: &[u8]) -> Option<usize> {
    if rest.get(1) == Some(&b'\\') {
        return Some(quoted_len(rest, b'\''));
    }
    let is_continuation = |byte: &u8| byte & 0b1100_0000 == 0b1000_0000;
    let n_more = rest.get(2..)?.iter().take_while(|byte| is_continuation(byte)).count();
    (rest.get(2 + n_more) == Some(&b'\'')).then_some(3 + n_more)
}

/// Returns the length of `#"..."#` after its prefix; `None` for other text.
fn raw_string_len(rest: &[u8]) -> Option<usize> {
    let n_hashes = rest.iter().take_while(|&&byte| byte == b'#').count();
    if rest.get(n_hashes) != Some(&b'"') {
        return None;
    }
    let end = [b"\"".as_slice(), &rest[..n_hashes]].concat();
    let body = n_hashes + 1;
    let len = rest[body..].windows(end.len()).position(|window| window == end);
    Some(len.map_or(rest.len(), |len| body + len + end.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, code: &str, comments: &str) {
        let views = split(text);
        assert_eq!(views.code.trim_end(), code);
        assert_eq!(views.comments.trim(), comments);
        assert_eq!(views.code.len(), text.len());
    }

    #[test]
    fn comments_leave_the_code() {
        check("let a = 1; // why", "let a = 1;", "// why");
        check("a /* b /* c */ d */ e", "a                   e", "/* b /* c */ d */");
        check("a / b", "a / b", "");
    }

    #[test]
    fn literals_leave_the_code() {
        check(r#"f("// \" no") + g"#, "f(          ) + g", "");
        check("f(r#\"a\" // b\"#, x)", "f(            , x)", "");
        check("f(br\"a\\\", b'\"')", "f(      , b   )", "");
    }

    #[test]
    fn quotes_of_characters_and_lifetimes_differ() {
        check("f('\"', 'é', '\\'', \"x\")", "f(   ,     ,     ,    )", "");
        check("fn f<'a>(x: &'a str) {} // 'a", "fn f<'a>(x: &'a str) {}", "// 'a");
    }

    #[test]
    fn code_lines_are_neither_comments_nor_blank() {
        let text = "//! a\n\nfn f() {\n    // b\n    g(\"c\n    d\");\n}\n";
        assert_eq!(split(text).n_code_lines, 4);
    }

    #[test]
    fn words_match_whole_only() {
        let found: Vec<usize> = words("unsafe_code unsafe unsafer", "unsafe").collect();
        assert_eq!(found, [12]);
    }

    #[test]
    fn brackets_nest() {
        assert_eq!(bracketed("f(a(b), [c]) d", 1), "a(b), [c]");
        assert_eq!(bracketed("f() d", 1), "");
        assert_eq!(bracketed("f(a", 1), "a");
    }
}
