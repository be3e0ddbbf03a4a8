//! Terminal output: streamed text, and below it a footer of a few lines that shows the current
//! activity.
//!
//! Lines are wrapped between words: a word that does not fit moves to the next line. Code, and
//! words longer than a line, are left to the terminal, so that they can be copied unchanged. The
//! footer is drawn below the cursor and erased before more text is written, so that nothing of it
//! remains. **Invariant:** each change is one write; the style is reset before the write ends; no
//! control character of a text reaches a terminal; the result does not depend on how the text is
//! split.

pub(crate) mod style;
mod wrap;
pub(crate) mod code;
pub(crate) mod device;

use std::io::{ErrorKind, Write};

use moeflux::{Error, Result};
use unicode_width::UnicodeWidthChar as _;

use crate::output::print::ReaderState;
use crate::output::sanitizer::sanitized;
use crate::output::screen::style::{Span, Style};
use crate::output::screen::wrap::Word;

/// Tab stops are at multiples of this.
const TAB_COLUMNS: usize = 8;

/// The abilities of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Styles: bold, dim and colours.
    pub(crate) has_styles: bool,
    /// The cursor can be moved: a footer is possible, and words can move to the next line.
    pub(crate) moves_cursor: bool,
}

/// A terminal, or a file or pipe in its place.
#[derive(Debug)]
pub(crate) struct Screen<W> {
    out: W,
    /// `None` if this is not a terminal: then text is passed through unchanged.
    abilities: Option<Abilities>,
    n_columns: usize,
    /// The cursor's column; equal to the number of columns if the next character begins a line.
    column: usize,
    /// The line was wrapped here at the terminal's edge: a newline that follows is already done.
    is_wrapped: bool,
    word: Word,
    footer: Vec<String>,
    is_footer_drawn: bool,
    reader: ReaderState,
}

impl<W: Write> Screen<W> {
    /// Creates a screen with the cursor at the start of a line.
    pub(crate) fn new(out: W, abilities: Option<Abilities>, n_columns: usize) -> Self {
        Self {
            out,
            abilities,
            n_columns: n_columns.max(1),
            column: 0,
            is_wrapped: false,
            word: Word::default(),
            footer: Vec::new(),
            is_footer_drawn: false,
            reader: ReaderState::Present,
        }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.abilities.is_some()
    }

    /// Returns whether styles are shown.
    pub(crate) fn has_styles(&self) -> bool {
        self.abilities.is_some_and(|it| it.has_styles)
    }

    pub(crate) fn has_footer(&self) -> bool {
        self.abilities.is_some_and(|it| it.moves_cursor)
    }

    /// Sets the width, which may change at any time.
    pub(crate) fn set_columns(&mut self, n_columns: usize) {
        if n_columns.max(1) != self.n_columns {
            // The terminal may have moved the text.
            self.word.begin(0);
        }
        self.n_columns = n_columns.max(1);
    }

    pub(crate) fn n_columns(&self) -> usize {
        self.n_columns
    }

    /// Returns whether the output still has a reader.
    pub(crate) fn has_reader(&self) -> bool {
        self.reader == ReaderState::Present
    }

    /// Records that other code wrote whole lines.
    pub(crate) fn is_at_line_start(&mut self) {
        (self.column, self.is_wrapped) = (0, false);
        self.word.begin(0);
    }

    /// Writes text.
    pub(crate) fn text(&mut self, spans: &[Span]) -> Result<()> {
        let mut written = String::new();
        self.erase_footer(&mut written);
        for Span { style, text } in spans {
            let sequence = self.sequence(*style);
            written.push_str(&sequence);
            let shown = if self.is_terminal() { &sanitized(text) } else { text };
            for letter in shown.chars() {
                self.letter(letter, *style, &mut written);
            }
            written.push_str(self.reset(*style));
        }
        self.draw_footer(&mut written);
        self.write(&written)
    }

    /// Writes a line of its own.
    pub(crate) fn line(&mut self, style: Style, text: &str) -> Result<()> {
        self.end_line()?;
        self.text(&[Span::new(style, text), Span::new(Style::PLAIN, "\n")])
    }

    /// Ends the line, unless it is empty.
    pub(crate) fn end_line(&mut self) -> Result<()> {
        if self.column == 0 {
            self.word.begin(0);
            return Ok(());
        }
        self.text(&[Span::new(Style::PLAIN, "\n")])
    }

    /// Sets the footer below the text; has no effect if the cursor cannot be moved.
    pub(crate) fn set_footer(&mut self, footer: Vec<String>) -> Result<()> {
        if !self.has_footer() || footer == self.footer {
            return Ok(());
        }
        let mut written = String::new();
        self.erase_footer(&mut written);
        self.footer = footer;
        self.draw_footer(&mut written);
        self.write(&written)
    }

    fn sequence(&self, style: Style) -> String {
        if self.has_styles() { style.sequence() } else { String::new() }
    }

    /// Returns the sequence that ends this style.
    fn reset(&self, style: Style) -> &'static str {
        if self.sequence(style).is_empty() { "" } else { RESET }
    }

    fn letter(&mut self, letter: char, style: Style, written: &mut String) {
        let was_wrapped = std::mem::take(&mut self.is_wrapped);
        let n_columns = letter.width().unwrap_or(0);
        let is_blank = letter == ' ' && style != Style::CODE && self.has_footer();
        match letter {
            '\n' if was_wrapped => {
                self.word.begin(0);
                return;
            }
            '\n' => self.begin_line(),
            '\t' => {
                let stop = (self.column / TAB_COLUMNS + 1) * TAB_COLUMNS;
                self.column = stop.min(self.n_columns - 1);
                self.word.begin(self.column);
            }
            // Blanks at the end of a line are replaced by the line end.
            _ if is_blank && was_wrapped => {
                self.word.begin(0);
                self.is_wrapped = true;
                return;
            }
            _ if is_blank && self.column >= self.n_columns => {
                written.push('\n');
                self.begin_line();
                self.is_wrapped = true;
                return;
            }
            _ if is_blank => {
                self.column += 1;
                self.word.begin(self.column);
            }
            // A combining mark belongs to the character before it.
            _ if n_columns == 0 => {
                self.word.push(style, letter);
                self.is_wrapped = was_wrapped;
            }
            _ => {
                if n_columns > 1 {
                    // The line may be broken on both sides, as in Chinese and Japanese.
                    self.word.begin(if was_wrapped { 0 } else { self.column });
                }
                if was_wrapped || self.column + n_columns > self.n_columns {
                    self.next_line(style, was_wrapped, written);
                }
                self.column += n_columns;
                self.word.push(style, letter);
                if n_columns > 1 {
                    self.word.begin(self.column);
                }
            }
        }
        written.push(letter);
    }

    fn begin_line(&mut self) {
        self.column = 0;
        self.word.begin(0);
    }

    /// Moves a character that does not fit to the next line, together with its word if that can be
    /// moved. The cursor may already be on the next line.
    fn next_line(&mut self, style: Style, is_there: bool, written: &mut String) {
        self.column = 0;
        let Some((spans, column)) = self.word.take().filter(|_| self.has_footer()) else {
            self.word.begin(0);
            return;
        };
        let up = if is_there { "\x1b[A" } else { "" };
        let reset = self.reset(style);
        written.push_str(&format!("{reset}{up}\r\x1b[{column}C\x1b[K\n"));
        for Span { style, text } in &spans {
            written.push_str(&format!("{}{text}{}", self.sequence(*style), self.reset(*style)));
            self.column += text.chars().filter_map(|it| it.width()).sum::<usize>();
        }
        written.push_str(&self.sequence(style));
    }

    /// Erases the footer, the only text below the cursor.
    fn erase_footer(&mut self, written: &mut String) {
        if std::mem::take(&mut self.is_footer_drawn) {
            written.push_str("\x1b[J");
        }
    }

    fn draw_footer(&mut self, written: &mut String) {
        if self.footer.is_empty() {
            return;
        }
        // At the end of a full line the cursor could not return: terminals differ.
        if self.column >= self.n_columns {
            written.push_str("\r\n");
            (self.column, self.is_wrapped) = (0, true);
        }
        for line in &self.footer {
            let line = sanitized(line);
            let line = cut(&line, self.n_columns - 1);
            let (sequence, reset) = (self.sequence(Style::DIM), self.reset(Style::DIM));
            written.push_str(&format!("\r\n{sequence}{line}{reset}"));
        }
        written.push_str(&format!("\r\x1b[{}A", self.footer.len()));
        if self.column > 0 {
            written.push_str(&format!("\x1b[{}C", self.column));
        }
        self.is_footer_drawn = true;
    }

    fn write(&mut self, text: &str) -> Result<()> {
        if text.is_empty() || !self.has_reader() {
            return Ok(());
        }
        let written = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.reader = ReaderState::Gone,
            Err(error) => {
                return Err(Error::Input(format!("cannot write to stdout: {error}")));
            }
            Ok(()) => {}
        }
        Ok(())
    }
}

const RESET: &str = "\x1b[0m";

/// Returns the start of a line, up to a width.
pub(crate) fn cut(line: &str, n_columns: usize) -> &str {
    let mut n_left = n_columns;
    for (at, letter) in line.char_indices() {
        match n_left.checked_sub(letter.width().unwrap_or(0)) {
            Some(rest) if letter != '\n' && letter != '\t' => n_left = rest,
            _ => return &line[..at],
        }
    }
    line
}

/// Returns the end of a line, up to a width.
pub(crate) fn cut_start(line: &str, n_columns: usize) -> &str {
    let mut n_left = n_columns;
    let mut begin = line.len();
    for (at, letter) in line.char_indices().rev() {
        match n_left.checked_sub(letter.width().unwrap_or(0)) {
            Some(rest) => n_left = rest,
            None => break,
        }
        begin = at;
    }
    &line[begin..]
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    const ALL: Abilities = Abilities { has_styles: true, moves_cursor: true };

    fn terminal(n_columns: u16) -> vt100::Parser {
        let size = |n: u16| NonZeroU16::new(n).unwrap();
        vt100::Parser::new(size(8), size(n_columns), 100)
    }

    /// Returns the final content of a terminal, and its cursor position.
    fn shown(screen: &Screen<Vec<u8>>, n_columns: u16) -> (String, (u16, u16)) {
        let mut terminal = terminal(n_columns);
        // As the system passes newlines to terminals.
        let written = String::from_utf8(screen.out.clone()).unwrap().replace('\n', "\r\n");
        terminal.process(written.as_bytes());
        (terminal.screen().contents(), terminal.screen().cursor_position())
    }

    fn plain(text: &str) -> [Span; 1] {
        [Span::new(Style::PLAIN, text)]
    }

    fn footer(text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }

    #[test]
    fn a_footer_is_below_the_text_and_leaves_no_trace() {
        for n_columns in [10, 40, 80] {
            // Lines that end before, at and after the last column, with wide characters.
            for text in [
                "abc",
                "0123456789",
                "0123456789a",
                "01234567\u{8a9e}",
                "012345678\u{8a9e}",
                "a\tb",
                "ab\n",
                "0123456789\nx",
            ] {
                let mut screen = Screen::new(Vec::new(), Some(ALL), usize::from(n_columns));
                let letters: Vec<String> = text.chars().map(String::from).collect();
                for (n_shown, letter) in letters.iter().enumerate() {
                    screen.set_footer(footer(&format!("foot {n_shown}"))).unwrap();
                    screen.text(&plain(letter)).unwrap();
                    let (contents, cursor) = shown(&screen, n_columns);
                    let expected = format!("foot {n_shown}");
                    assert_eq!(contents.lines().last(), Some(expected.as_str()), "{text:?}");
                    assert!(usize::from(cursor.0) < contents.lines().count(), "{contents:?}");
                }
                screen.set_footer(Vec::new()).unwrap();
                let mut without = Screen::new(Vec::new(), Some(ALL), usize::from(n_columns));
                without.text(&plain(text)).unwrap();
                let text_of = |screen| shown(screen, n_columns).0.replace('\n', "");
                assert_eq!(text_of(&screen), text_of(&without), "{text:?} in {n_columns}");
            }
        }
    }

    fn rows(screen: &Screen<Vec<u8>>, n_columns: u16) -> Vec<String> {
        let mut terminal = terminal(n_columns);
        let written = String::from_utf8(screen.out.clone()).unwrap().replace('\n', "\r\n");
        terminal.process(written.as_bytes());
        let rows = terminal.screen().rows(0, n_columns).map(|row| row.trim_end().to_owned());
        let mut rows: Vec<String> = rows.collect();
        while rows.last().is_some_and(String::is_empty) {
            rows.pop();
        }
        rows
    }

    /// Shows the text at once, and character by character with and without a footer.
    #[track_caller]
    fn check_rows(spans: &[(Style, &str)], n_columns: u16, expected: &[&str]) {
        let new = || Screen::new(Vec::new(), Some(ALL), usize::from(n_columns));
        let spans: Vec<Span> = spans.iter().map(|(style, text)| Span::new(*style, text)).collect();
        let mut whole = new();
        whole.text(&spans).unwrap();
        assert_eq!(rows(&whole, n_columns), expected, "{spans:?}");
        for has_footer in [false, true] {
            let mut cut = new();
            let letters =
                spans.iter().flat_map(|it| it.text.chars().map(|letter| (it.style, letter)));
            for (letter_idx, (style, letter)) in letters.enumerate() {
                if has_footer && letter_idx % 3 != 1 {
                    cut.set_footer(footer(&format!("foot {letter_idx}"))).unwrap();
                }
                cut.text(&[Span::new(style, &letter.to_string())]).unwrap();
            }
            cut.set_footer(Vec::new()).unwrap();
            assert_eq!(rows(&cut, n_columns), expected, "{spans:?} by letters, foot: {has_footer}");
        }
    }

    #[test]
    fn lines_end_between_words() {
        let check = |text, expected: &[&str]| check_rows(&[(Style::PLAIN, text)], 10, expected);
        check("the quick brown fox", &["the quick", "brown fox"]);
        check("the quick1 brown", &["the quick1", "brown"]);
        check("the quick12 brown", &["the", "quick12", "brown"]);
        check("the quick  brown", &["the quick", "brown"]);
        check("the quick1\nbrown", &["the quick1", "brown"]);
        check("the quick1  \nbrown", &["the quick1", "brown"]);
        check("the quick1\n\nbrown", &["the quick1", "", "brown"]);
        check("a 0123456789abc d", &["a", "0123456789", "abc d"]);
        check("0123456789abc", &["0123456789", "abc"]);
        check(
            "a\u{8a9e}\u{8a9e}\u{8a9e}\u{8a9e}\u{8a9e}",
            &["a\u{8a9e}\u{8a9e}\u{8a9e}\u{8a9e}", "\u{8a9e}"],
        );
        check("abc defgh\u{301}ij", &["abc", "defgh\u{301}ij"]);
        check("abc\tdefg", &["abc", "defg"]);
    }

    #[test]
    fn a_word_keeps_its_looks_on_the_next_line_and_code_is_not_broken() {
        let spans = [(Style::PLAIN, "the qui"), (Style::BOLD, "ck12"), (Style::PLAIN, ", x")];
        check_rows(&spans, 10, &["the", "quick12, x"]);
        let mut screen = Screen::new(Vec::new(), Some(ALL), 10);
        screen.text(&spans.map(|(style, text)| Span::new(style, text))).unwrap();
        let written = String::from_utf8(screen.out).unwrap();
        let expected =
            "the qui\x1b[1mck1\x1b[0m\r\x1b[4C\x1b[K\nqui\x1b[1mck1\x1b[0m\x1b[1m2\x1b[0m, x";
        assert_eq!(written, expected);
        check_rows(&[(Style::CODE, "let a = b + c;")], 10, &["let a = b", "+ c;"]);
        let inline = [(Style::PLAIN, "run "), (Style::CODE, "cd a b"), (Style::PLAIN, " now")];
        check_rows(&inline, 10, &["run cd a b", "now"]);
        check_rows(&inline, 9, &["run", "cd a b", "now"]);
    }

    #[test]
    fn a_line_of_its_own_takes_no_word_along() {
        let mut screen = Screen::new(Vec::new(), Some(ALL), 7);
        screen.set_footer(footer("foot")).unwrap();
        screen.text(&plain("abc def")).unwrap();
        screen.line(Style::DIM, "end").unwrap();
        screen.set_footer(Vec::new()).unwrap();
        assert_eq!(rows(&screen, 7), ["abc def", "end"]);
    }

    #[test]
    fn a_foot_at_the_end_of_the_screen_scrolls_it() {
        let mut screen = Screen::new(Vec::new(), Some(ALL), 40);
        screen.set_footer(vec!["one".to_owned(), "two".to_owned()]).unwrap();
        for line_idx in 0..20 {
            screen.text(&plain(&format!("line {line_idx}\n"))).unwrap();
        }
        let (contents, _) = shown(&screen, 40);
        assert!(contents.ends_with("line 18\nline 19\n\none\ntwo"), "{contents}");
        screen.set_footer(Vec::new()).unwrap();
        screen.line(Style::DIM, "end").unwrap();
        let (contents, cursor) = shown(&screen, 40);
        assert!(contents.ends_with("line 19\nend"), "{contents}");
        assert_eq!(cursor.1, 0);
    }

    #[test]
    fn without_abilities_there_is_the_text_alone() {
        let none = Abilities { has_styles: false, moves_cursor: false };
        for (abilities, expected) in [(Some(none), "a^[b\nc\n"), (None, "a\x1bb\nc\n")] {
            let mut screen = Screen::new(Vec::new(), abilities, 10);
            screen.set_footer(footer("foot")).unwrap();
            screen.text(&[Span::new(Style::BOLD, "a\x1b"), Span::new(Style::CODE, "b")]).unwrap();
            screen.line(Style::DIM, "c").unwrap();
            assert_eq!(String::from_utf8(screen.out).unwrap(), expected);
        }
    }

    #[test]
    fn sequences_of_the_text_do_nothing() {
        let mut screen = Screen::new(Vec::new(), Some(ALL), 80);
        screen.text(&plain("a\x1b[2Jb\x1b]0;title\x07\u{9b}31mc")).unwrap();
        let (contents, _) = shown(&screen, 80);
        assert_eq!(contents, "a^[[2Jb^[]0;title^G\\u{9b}31mc");
    }

    #[test]
    fn lines_are_cut_by_columns() {
        assert_eq!(cut("abc", 2), "ab");
        assert_eq!(cut("a\u{8a9e}b", 2), "a");
        assert_eq!(cut("a\nb", 9), "a");
        assert_eq!(cut_start("abc", 2), "bc");
        assert_eq!(cut_start("a\u{8a9e}", 2), "\u{8a9e}");
        assert_eq!(cut_start("abc", 9), "abc");
    }
}
