//! Takes an empty think block away from the start of an answer.
//!
//! Models that may reason write one where they did not. **Invariant:** every other answer goes
//! through unchanged, a block with reasoning too. Knows no tokens.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A longer beginning without a word is no think block.
const HELD_BYTES_MAX: usize = 64;

/// An answer's text on its way to the reader.
#[derive(Debug, Default)]
pub(crate) struct EmptyThink {
    state: State,
    /// The start of the answer while it may still be an empty block.
    held: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    MayBeEmptyBlock,
    AfterEmptyBlock,
    InText,
}

impl EmptyThink {
    /// For text that is to stay as it is.
    pub(crate) fn kept() -> Self {
        Self { state: State::InText, held: String::new() }
    }

    /// What is certain to be shown, now that this text came.
    pub(crate) fn push(&mut self, text: &str) -> String {
        let mut text = std::mem::take(&mut self.held) + text;
        if self.state == State::MayBeEmptyBlock {
            match after_empty_block(&text) {
                Some(Ok(rest)) => {
                    text = rest.to_owned();
                    self.state = State::AfterEmptyBlock;
                }
                Some(Err(MayBecomeOne)) if text.len() <= HELD_BYTES_MAX => {
                    self.held = text;
                    return String::new();
                }
                _ => self.state = State::InText,
            }
        }
        if self.state == State::AfterEmptyBlock {
            text = text.trim_start().to_owned();
            if !text.is_empty() {
                self.state = State::InText;
            }
        }
        text
    }

    /// What is still held at the end of the answer.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

struct MayBecomeOne;

/// What follows the empty block at the start of a text; `None` if the text begins otherwise. A
/// template that opens the block itself leaves only its end to the model.
fn after_empty_block(text: &str) -> Option<Result<&str, MayBecomeOne>> {
    let mut rest = text.trim_start();
    rest = rest.strip_prefix(OPEN).unwrap_or(rest).trim_start();
    match rest.strip_prefix(CLOSE) {
        Some(rest) => Some(Ok(rest)),
        None if CLOSE.starts_with(rest) || OPEN.starts_with(rest) => Some(Err(MayBecomeOne)),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole, and cut at each place.
    #[track_caller]
    fn check(answer: &str, expected: &str) {
        for cut in (0..=answer.len()).filter(|cut| answer.is_char_boundary(*cut)) {
            let mut filter = EmptyThink::default();
            let (first, second) = answer.split_at(cut);
            let shown = filter.push(first) + &filter.push(second) + &filter.finish();
            assert_eq!(shown, expected, "cut at {cut}");
        }
        let mut filter = EmptyThink::default();
        let mut shown: String =
            answer.chars().map(|it| filter.push(it.encode_utf8(&mut [0; 4]))).collect();
        shown += &filter.finish();
        assert_eq!(shown, expected, "by characters");
        assert_eq!(EmptyThink::kept().push(answer), answer);
    }

    #[test]
    fn only_an_empty_block_at_the_start_goes() {
        check("<think>\n\n</think>\n\n  An answer.\n", "An answer.\n");
        check("<think></think>x", "x");
        check("\n<think> </think>\n<tool_call>", "<tool_call>");
        check("</think>\n\nx <think>\n</think>", "x <think>\n</think>");
        check("<think>\n\n</think>\n\n", "");
        for kept in [
            "",
            "  An answer.",
            "<think>\nReasons.\n</think>\n\nx",
            "<think>\n",
            "</thin",
            "<tool_call>",
            "\u{e9}<think></think>",
        ] {
            check(kept, kept);
        }
        let long = format!("<think>{}</think>x", " ".repeat(HELD_BYTES_MAX));
        let mut filter = EmptyThink::default();
        let shown: String = long.split_inclusive(' ').map(|it| filter.push(it)).collect();
        assert_eq!(shown, long);
    }
}
