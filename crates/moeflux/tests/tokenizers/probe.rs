//! Opens a tokenizer and uses all of it: texts of many kinds in, any tokens out.
//!
//! **Invariant:** an error is returned as its line, whichever call it came from.

use std::path::Path;

use moeflux::provider::ids::TokenId;
use moeflux::provider::text::{SpecialText, TextStream, Tokenizer};

/// Bytes of each long text.
const LONG_BYTES: usize = 8 << 10;
/// Most characters of an error after the file's name.
const LINE_CHARS_MAX: usize = 400;

/// Opens a folder and encodes texts. Returns the numbers of tokens and bytes, or the error.
pub(crate) fn open(dir: &Path) -> Result<String, String> {
    let line = |error: moeflux::provider::error::Error| error.to_string();
    let tokenizer = Tokenizer::open(dir, usize::MAX).map_err(line)?;
    let (mut n_tokens, mut n_bytes) = (0, 0);
    for text in texts() {
        let tokens = tokenizer.encode(&text).map_err(line)?;
        assert_eq!(tokens, tokenizer.encode(&text).map_err(line)?, "two encodings differ");
        tokenizer.encode_plain(&text).map_err(line)?;
        let prompt = tokenizer.encode_prompt(&text).map_err(line)?;
        let is_known = |token: &TokenId| usize::try_from(token.0).unwrap() < tokenizer.vocab_size();
        assert!(prompt.iter().all(is_known), "an id without a row");
        n_tokens += tokens.len();
        n_bytes += tokenizer.decode(&tokens).len();
    }
    let mut stream = TextStream::new(&tokenizer, SpecialText::Shown);
    let last = u32::try_from(tokenizer.vocab_size()).unwrap();
    for id in (0..last.min(4096)).chain(last.saturating_sub(64)..last).chain([u32::MAX]) {
        stream.push(TokenId(id));
        n_bytes += tokenizer.token_bytes(TokenId(id)).len();
        n_bytes += tokenizer.token_text(TokenId(id)).map_or(0, |text| text.len());
    }
    stream.finish();
    n_bytes += tokenizer.decode(&vec![TokenId(last.saturating_sub(1)); 4096]).len();
    Ok(format!("works: {n_tokens} tokens, {n_bytes} bytes back, {} ids", tokenizer.vocab_size()))
}

/// One line of bounded length that begins with a file of the folder.
pub(crate) fn check_line(dir: &Path, line: &str) {
    let prefix = dir.join("tokenizer").display().to_string();
    let rest = line.strip_prefix(&prefix).expect("a line that begins with its file");
    assert!(!line.contains(char::is_control), "{line:?}");
    assert!(rest.chars().count() <= LINE_CHARS_MAX, "{} characters: {line}", line.len());
}

fn texts() -> Vec<String> {
    let long = |unit: &str| unit.repeat(LONG_BYTES / unit.len());
    let units = [
        " ",
        "a",
        "1",
        "\n",
        "!",
        "A",
        "語",
        "\u{301}",
        "hello World 12,345 it's\n  ",
        "a ",
        "é😀<|im_start|>\u{fdfa} ",
        "\u{ac00}x",
    ];
    let short = ["", " ", "hello world", "It's 12  spaces,\n\n \tand 語 ÉÀ! 😀\0\u{feff}"];
    short.into_iter().map(str::to_owned).chain(units.into_iter().map(long)).collect()
}
