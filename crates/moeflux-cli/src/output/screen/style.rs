//! The style of a piece of text.

/// A combination of bold, italic, code and dim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Style(u8);

/// Text in one style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) style: Style,
    pub(crate) text: String,
}

/// The terminal code of each bit.
const CODES: [(Style, &str); 4] =
    [(Style::BOLD, "1"), (Style::DIM, "2"), (Style::ITALIC, "3"), (Style::CODE, "36")];

impl Style {
    pub(crate) const PLAIN: Self = Self(0);
    pub(crate) const BOLD: Self = Self(1);
    pub(crate) const ITALIC: Self = Self(2);
    pub(crate) const CODE: Self = Self(4);
    pub(crate) const DIM: Self = Self(8);

    /// Combines two styles.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the sequence that starts the style on a terminal; empty for plain text.
    pub(crate) fn sequence(self) -> String {
        let codes = CODES.iter().filter(|(style, _)| self.has(*style)).map(|(_, code)| *code);
        let codes: Vec<&str> = codes.collect();
        if codes.is_empty() { String::new() } else { format!("\x1b[{}m", codes.join(";")) }
    }
}

impl Span {
    pub(crate) fn new(style: Style, text: &str) -> Self {
        Self { style, text: text.to_owned() }
    }
}

/// Appends text to spans; adjacent text in the same style becomes one span.
pub(crate) fn add(spans: &mut Vec<Span>, style: Style, text: &str) {
    if text.is_empty() {
        return;
    }
    match spans.last_mut().filter(|last| last.style == style) {
        Some(last) => last.text.push_str(text),
        None => spans.push(Span::new(style, text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_contain_only_the_attributes_that_are_set() {
        assert_eq!(Style::PLAIN.sequence(), "");
        assert_eq!(Style::BOLD.sequence(), "\x1b[1m");
        assert_eq!(Style::CODE.and(Style::BOLD).sequence(), "\x1b[1;36m");
    }
}
