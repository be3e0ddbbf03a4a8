//! Checks a template's tokens before it is parsed.
//!
//! **Invariant:** a template that passes can be parsed, compiled and dropped recursively on
//! [`render::STACK_BYTES`]. The parser bounds brackets and blocks itself; sequences of operators,
//! attributes, filters and `elif` make a tree as deep as they are long, which is bounded here.
//!
//! [`render::STACK_BYTES`]: super::render::STACK_BYTES

use minijinja::machinery::{Token, Tokenizer};
use minijinja::syntax::SyntaxConfig;

/// Maximum tokens of a template. Published ones of 30 KB have up to 8,000.
const TOKENS_MAX: usize = 100_000;
/// Maximum tokens between `{{` and `}}`, or `{%` and `%}`.
const TAG_TOKENS_MAX: usize = 4096;
/// Maximum bytes of a line: the tokenizer counts columns in 16 bits, and adds one in an error.
const LINE_BYTES_MAX: usize = 65_000;
/// Maximum number of `elif` in one `if`.
const ELIF_MAX: usize = 500;

/// The reason why a template is not compiled, and its line.
#[derive(Debug)]
pub(super) struct CompileError {
    pub(super) line: u16,
    pub(super) reason: String,
}

impl CompileError {
    pub(super) fn new(line: u16, reason: impl Into<String>) -> Self {
        Self { line, reason: reason.into() }
    }
}

/// Refuses sequences that are too long. Tokenizer errors are left to the parser.
pub(super) fn check(source: &str, syntax: SyntaxConfig) -> Result<(), CompileError> {
    let long = source.split('\n').position(|line| line.len() > LINE_BYTES_MAX);
    if let Some(index) = long {
        let line = u16::try_from(index + 1).unwrap_or(u16::MAX);
        return Err(CompileError::new(line, format!("more than {LINE_BYTES_MAX} bytes in a line")));
    }
    let mut tokenizer = Tokenizer::new(source, "", false, syntax);
    let (mut n_tokens, mut n_in_tag) = (0, 0);
    let mut open_ifs: Vec<usize> = Vec::new();
    let mut is_first = false;
    while let Ok(Some((token, span))) = tokenizer.next_token() {
        let line = span.start_line;
        n_tokens += 1;
        n_in_tag += 1;
        if n_tokens > TOKENS_MAX {
            return Err(CompileError::new(line, format!("more than {TOKENS_MAX} tokens")));
        }
        if n_in_tag > TAG_TOKENS_MAX {
            let reason = format!("more than {TAG_TOKENS_MAX} tokens in one tag");
            return Err(CompileError::new(line, reason));
        }
        let was_first = std::mem::take(&mut is_first);
        match token {
            Token::BlockStart | Token::VariableStart | Token::TemplateData(_) => {
                n_in_tag = 0;
                is_first = matches!(token, Token::BlockStart);
            }
            Token::Ident("if") if was_first => open_ifs.push(0),
            Token::Ident("endif") if was_first => drop(open_ifs.pop()),
            Token::Ident("elif") if was_first => {
                let n_elif = open_ifs.last_mut();
                let n_elif = n_elif.map_or(1, |n_elif| {
                    *n_elif += 1;
                    *n_elif
                });
                if n_elif > ELIF_MAX {
                    return Err(CompileError::new(line, format!("more than {ELIF_MAX} `elif`")));
                }
            }
            _ => {}
        }
    }
    Ok(())
}
