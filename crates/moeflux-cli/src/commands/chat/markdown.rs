//! Streaming Markdown for a terminal: turns pieces of text into styled text.
//!
//! Headings, bold, italic, code, fences, and the marks of lists and quotes are styled; everything
//! else, including links and tables, is shown as it is. Only the markers of headings and of pairs
//! are left out. **Invariant:** the result does not depend on how the text is split; every
//! character that is not such a marker is output once and in order. However long a line is, at most
//! [`HELD_BYTES_MAX`] of it and the last piece are scanned again.

use crate::commands::chat::inline::{self, HELD_BYTES_MAX, InlineToken};
use crate::output::screen::style::{Span, Style, add};

/// Upper bound on the digits of a list number.
const LIST_DIGITS_MAX: usize = 9;

/// Number of heading levels.
const HEADING_MARKS_MAX: usize = 6;

/// Upper bound on the blanks before the marks of a heading: with more, the marks are code or part
/// of a list.
const HEADING_INDENT_MAX: usize = 3;

/// The fewest marks that open or close a code block.
const FENCE_MARKS_MIN: usize = 3;

/// The state of an answer being rendered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Markdown {
    position: LinePosition,
    fence: Option<Fence>,
    /// Text whose markup is undecided.
    held: String,
    /// The last character shown of this line.
    before: Option<char>,
    /// A mark that was repeated too often to be a marker: the rest of its run is text.
    run: Option<char>,
    /// Bytes scanned for ends of lines and of runs.
    #[cfg(test)]
    n_searched_bytes: std::cell::Cell<usize>,
}

/// The position in a line at which the held text begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinePosition {
    #[default]
    Start,
    /// After the marks at the start of the line, with this base style.
    Inside(Style),
    /// In a line of a code block.
    Code,
}

/// The marks that close a code block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fence {
    mark: char,
    n_marks: usize,
}

/// The start of a line.
enum LineStart {
    /// Bytes of a marker and its style; text follows.
    Marker(usize, Style),
    /// A heading, whose marks are left out.
    Heading(usize),
    /// The line opens a code block.
    Fence(Fence),
    /// A quote mark: another start of a line may follow.
    Quote(usize),
    Text,
    Unknown,
}

impl Markdown {
    /// Adds text. Returns the spans that are now decided.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Span> {
        self.held.push_str(text);
        self.take_decided(false)
    }

    /// Ends the text and returns the remaining spans.
    pub(crate) fn finish(&mut self) -> Vec<Span> {
        let spans = self.take_decided(true);
        *self = Self::default();
        spans
    }

    fn take_decided(&mut self, is_over: bool) -> Vec<Span> {
        let mut spans = Vec::new();
        let held = std::mem::take(&mut self.held);
        let mut rest = held.as_str();
        let mut line_end = self.line_end(rest);
        while !rest.is_empty() {
            let line = &rest[..line_end.unwrap_or(rest.len())];
            let is_whole = line_end.is_some() || is_over;
            let Some(n_bytes) = self.take(line, is_whole, &mut spans) else { break };
            rest = &rest[n_bytes..];
            line_end = line_end.map(|end| end - n_bytes);
            if line_end == Some(0) {
                add(&mut spans, Style::PLAIN, "\n");
                rest = &rest[1..];
                (self.position, self.before, self.run) = (LinePosition::Start, None, None);
                line_end = self.line_end(rest);
            }
        }
        rest.clone_into(&mut self.held);
        spans
    }

    fn line_end(&self, text: &str) -> Option<usize> {
        let end = text.find('\n');
        self.searched(end.unwrap_or(text.len()));
        end
    }

    #[cfg(test)]
    fn searched(&self, n_bytes: usize) {
        self.n_searched_bytes.update(|before| before + n_bytes);
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "only tests count")]
    fn searched(&self, _n_bytes: usize) {}

    /// Renders the decided start of the rest of a line. Returns its length, or `None` if nothing is
    /// decided.
    fn take(&mut self, line: &str, is_whole: bool, spans: &mut Vec<Span>) -> Option<usize> {
        match (self.position, self.fence) {
            (LinePosition::Start, Some(fence)) => {
                self.take_in_fence(fence, (line, is_whole), spans)
            }
            (LinePosition::Start, None) => self.take_start(line, is_whole, spans),
            (LinePosition::Inside(_), _) if line.is_empty() => Some(0),
            (LinePosition::Inside(style), _) => {
                if let Some(n_bytes) = self.take_run(line, style, spans) {
                    return Some(n_bytes);
                }
                let n_bytes = match inline::next_token(line, self.before, is_whole) {
                    InlineToken::Unknown => return None,
                    InlineToken::Plain(text) => {
                        add(spans, style, text);
                        text.len()
                    }
                    InlineToken::Run(run) => {
                        add(spans, style, run);
                        self.run = run.chars().next();
                        run.len()
                    }
                    InlineToken::Marked { style: inner_style, inner, marker_bytes } => {
                        inline::render_marked((inner_style, inner), style, spans);
                        inner.len() + 2 * marker_bytes
                    }
                };
                self.before = line[..n_bytes].chars().next_back();
                Some(n_bytes)
            }
            (LinePosition::Code, _) => {
                add(spans, Style::CODE, line);
                Some(line.len())
            }
        }
    }

    /// Renders more of a run of marks that is text.
    fn take_run(&mut self, line: &str, style: Style, spans: &mut Vec<Span>) -> Option<usize> {
        let mark = self.run?;
        let n_bytes = line.len() - line.trim_start_matches(mark).len();
        self.searched(n_bytes);
        if n_bytes < line.len() {
            self.run = None;
        }
        add(spans, style, &line[..n_bytes]);
        (n_bytes > 0).then_some(n_bytes)
    }

    fn take_start(&mut self, line: &str, is_whole: bool, spans: &mut Vec<Span>) -> Option<usize> {
        let start = start_of(line, is_whole);
        if !matches!(start, LineStart::Quote(_)) {
            // Of a quote, only the first mark was scanned, and another may follow.
            self.searched(line.len());
        }
        let n_bytes = match start {
            LineStart::Unknown => return None,
            LineStart::Text => 0,
            LineStart::Heading(n_bytes) => {
                self.position = LinePosition::Inside(Style::BOLD);
                return Some(n_bytes);
            }
            LineStart::Marker(n_bytes, style) => {
                add(spans, style, &line[..n_bytes]);
                n_bytes
            }
            LineStart::Quote(n_bytes) => {
                add(spans, Style::DIM, &line[..n_bytes]);
                return Some(n_bytes);
            }
            LineStart::Fence(fence) => {
                self.fence = Some(fence);
                self.position = LinePosition::Code;
                add(spans, Style::DIM, line);
                return Some(line.len());
            }
        };
        self.position = LinePosition::Inside(Style::PLAIN);
        self.before = line[..n_bytes].chars().next_back();
        Some(n_bytes)
    }

    fn take_in_fence(
        &mut self,
        fence: Fence,
        (line, is_whole): (&str, bool),
        spans: &mut Vec<Span>,
    ) -> Option<usize> {
        let marks = line.trim_start().trim_end();
        let may_end = marks.chars().all(|it| it == fence.mark) && line.len() <= HELD_BYTES_MAX;
        if may_end && !is_whole {
            return None;
        }
        let ends = may_end && marks.len() >= fence.n_marks;
        if ends {
            self.fence = None;
        }
        self.position = LinePosition::Code;
        add(spans, if ends { Style::DIM } else { Style::CODE }, line);
        Some(line.len())
    }
}

/// Classifies the start of a line.
fn start_of(line: &str, is_whole: bool) -> LineStart {
    let rest = line.trim_start_matches([' ', '\t']);
    let indent = line.len() - rest.len();
    if indent > HELD_BYTES_MAX {
        return LineStart::Text;
    }
    let Some(first) = rest.chars().next() else {
        return if is_whole { LineStart::Text } else { LineStart::Unknown };
    };
    if first == '>' {
        return LineStart::Quote(indent + 1);
    }
    let run = rest.len() - rest.trim_start_matches(first).len();
    let is_run_only = run == rest.len() && !is_whole;
    let is_before_blank = rest[run..].starts_with([' ', '\t']);
    match first {
        '#' if run > HEADING_MARKS_MAX || indent > HEADING_INDENT_MAX => LineStart::Text,
        '#' if is_run_only => LineStart::Unknown,
        '#' if is_before_blank => LineStart::Heading(indent + run + 1),
        '-' | '+' | '*' if run == 1 && is_run_only => LineStart::Unknown,
        '-' | '+' | '*' if run == 1 && is_before_blank => {
            LineStart::Marker(indent + 1, Style::BOLD)
        }
        '`' | '~' if run < FENCE_MARKS_MIN && is_run_only => LineStart::Unknown,
        '`' | '~' if run >= FENCE_MARKS_MIN => {
            // Inline code may begin with as many marks.
            let is_inside = first == '`' && rest[run..].contains('`');
            match is_inside || line.len() > HELD_BYTES_MAX {
                true => LineStart::Text,
                false if is_whole => LineStart::Fence(Fence { mark: first, n_marks: run }),
                false => LineStart::Unknown,
            }
        }
        '0'..='9' => number(rest, indent, is_whole),
        _ => LineStart::Text,
    }
}

/// Recognises a list number: digits, a full stop or closing bracket, and a blank.
fn number(rest: &str, indent: usize, is_whole: bool) -> LineStart {
    let n_digits = rest.len() - rest.trim_start_matches(|it: char| it.is_ascii_digit()).len();
    let mut after = rest[n_digits..].chars();
    match (after.next(), after.next()) {
        _ if n_digits > LIST_DIGITS_MAX => LineStart::Text,
        (None, _) | (Some('.' | ')'), None) if !is_whole => LineStart::Unknown,
        (Some('.' | ')'), Some(' ' | '\t')) => {
            LineStart::Marker(indent + n_digits + 1, Style::BOLD)
        }
        _ => LineStart::Text,
    }
}

#[cfg(test)]
mod tests {
    use moeflux_testing::random::Rng;

    use super::*;

    /// Formats styles: `[b:..]` bold, `[i:..]` italic, `[c:..]` code, `[d:..]` dim.
    fn shown(spans: &[Span]) -> String {
        let letters = [
            (Style::BOLD.and(Style::ITALIC), "bi"),
            (Style::BOLD.and(Style::CODE), "bc"),
            (Style::BOLD, "b"),
            (Style::ITALIC, "i"),
            (Style::CODE, "c"),
            (Style::DIM, "d"),
        ];
        let span = |Span { style, text }: &Span| match letters.iter().find(|(it, _)| it == style) {
            None => text.clone(),
            Some((_, letters)) => format!("[{letters}:{text}]"),
        };
        spans.iter().map(span).collect()
    }

    fn rendered(pieces: &[&str]) -> Vec<Span> {
        let mut markdown = Markdown::default();
        let mut spans = Vec::new();
        let mut put = |more: Vec<Span>| {
            more.iter().for_each(|span| add(&mut spans, span.style, &span.text));
        };
        pieces.iter().for_each(|piece| put(markdown.push(piece)));
        put(markdown.finish());
        spans
    }

    /// Checks the text whole, split at every place, and character by character.
    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(shown(&rendered(&[text])), expected, "{text:?}");
        let cuts: Vec<usize> = (0..=text.len()).filter(|it| text.is_char_boundary(*it)).collect();
        for cut in &cuts {
            let (begin, end) = text.split_at(*cut);
            assert_eq!(shown(&rendered(&[begin, end])), expected, "{text:?} cut at {cut}");
        }
        let letters: Vec<&str> = cuts.windows(2).map(|it| &text[it[0]..it[1]]).collect();
        assert_eq!(shown(&rendered(&letters)), expected, "{text:?} by letters");
    }

    #[test]
    fn pairs_inside_a_line_have_a_look() {
        check("a **b c** d", "a [b:b c] d");
        check("*i* and _j_", "[i:i] and [i:j]");
        check("***both*** __b__", "[bi:both] [b:b]");
        check("`a*b*` ``c ` d``", "[c:a*b*] [c:c ` d]");
        check("**a `b` *c***d", "**a [c:b] *c***d");
        check("**a `b` *c* d** e", "[b:a ][bc:b][b: ][bi:c][b: d] e");
        check("**a `**` b**", "[b:a ][bc:**][b: b]");
        check("(**x**).", "([b:x]).");
        check("**\u{91cd}\u{ff1a}**\u{8fd9}", "[b:\u{91cd}\u{ff1a}]\u{8fd9}");
        check("\u{e9}**\u{8a9e}**\u{1f600}", "\u{e9}[b:\u{8a9e}]\u{1f600}");
    }

    #[test]
    fn unpaired_markers_are_text() {
        for text in [
            "2 * 3 * 4",
            "2*",
            "*",
            "**",
            "a **b\nc** d",
            "snake_case_name and _x",
            "`a",
            "``a`",
            "a ` b ** c _",
            "\\*a\\* \\`b\\`",
            "C:\\a\\*",
            "****a****",
            "-",
            "1.",
            "|a|b|\n|-|-|\n",
            "[text](https://a.b/c_d_e)",
            "<b>x</b> &amp;",
            "a\n\n\nb\n",
            "\\",
            "",
        ] {
            check(text, text);
        }
        check("__init__.py_x", "[b:init].py_x");
        check("* *a * b", "[b:*] *a * b");
        check("a_b_ _c_d_", "a_b_ [i:c_d]");
    }

    #[test]
    fn a_pair_that_does_not_end_soon_is_text() {
        let long = "x".repeat(HELD_BYTES_MAX);
        for marker in ["**", "*", "`", "```"] {
            let text = format!("a {marker}{long}{marker} *b*\n");
            check(&text, &format!("a {marker}{long}{marker} [i:b]\n"));
        }
        let around = [("*", "*b* ", "[c:c]"), ("_", "[i:b] ", "[c:c]"), ("`", "[i:b] ", "`c`")];
        for (mark, begin, end) in around {
            for n_more in [0, 1, 2, 9] {
                let run = mark.repeat(HELD_BYTES_MAX + n_more);
                check(&format!("{run} a\n"), &format!("{run} a\n"));
                let expected = format!("x {run}{begin}{end}{run}\n");
                check(&format!("x {run}*b* `c`{run}\n"), &expected);
            }
        }
    }

    /// Difficult lines of a megabyte: bounds the text that is held and that is scanned again.
    #[test]
    fn a_long_line_is_looked_at_once() {
        const LINE_BYTES: usize = 1 << 20;
        const BY_LETTERS_BYTES: usize = 1 << 16;
        let units = [
            "*", "_", "`", ">", "> ", "#", "-", " ", "\t", "1", "~", "\\", "a", "**a", "*a* ",
            "`a", "``a` ", "_a_b", "a**b* ", "[a](b)", "\u{e9}*", "> *a", "- ", "```a", "a\\*",
        ];
        for unit in units {
            let line = unit.repeat(LINE_BYTES / unit.len());
            let letters = line.char_indices().map(|(at, it)| &line[at..at + it.len_utf8()]);
            let letters: Vec<&str> = letters.take(BY_LETTERS_BYTES).collect();
            for (pieces, times) in [(vec![line.as_str()], 4), (letters, 2 * HELD_BYTES_MAX + 4)] {
                let n_bytes: usize = pieces.iter().map(|it| it.len()).sum();
                let piece_bytes = pieces.iter().map(|it| it.len()).max().unwrap_or(0);
                let mut markdown = Markdown::default();
                let mut n_shown_bytes = 0;
                let mut n_held_bytes_max = 0;
                for piece in pieces {
                    let spans = markdown.push(piece);
                    n_shown_bytes += spans.iter().map(|it| it.text.len()).sum::<usize>();
                    n_held_bytes_max = n_held_bytes_max.max(markdown.held.len());
                }
                let n_searched_bytes = markdown.n_searched_bytes.get();
                assert!(n_held_bytes_max <= HELD_BYTES_MAX + piece_bytes, "{unit:?}");
                assert!(n_searched_bytes <= times * n_bytes, "{unit:?}: {n_searched_bytes}");
                let rest = markdown.finish();
                n_shown_bytes += rest.iter().map(|it| it.text.len()).sum::<usize>();
                assert!(n_shown_bytes <= n_bytes, "{unit:?}");
            }
        }
    }

    #[test]
    fn lines_begin_with_marks() {
        check("# A *b*\nc", "[b:A ][bi:b]\nc");
        check("###### A\n####### B\n#C\n#", "[b:A]\n####### B\n#C\n#");
        check("- a\n* **b**\n  + c\n-d\n", "[b:-] a\n[b:*] [b:b]\n[b:  +] c\n-d\n");
        check("1. a\n22) b\n3.5\n4", "[b:1.] a\n[b:22)] b\n3.5\n4");
        check("1234567890. a", "1234567890. a");
        check("> a *b*\n> > c\n>\n", "[d:>] a [i:b]\n[d:> >] c\n[d:>]\n");
        check("---\n***\n- - a", "---\n***\n[b:-] - a");
        check("\t* a", "[b:\t*] a");
    }

    #[test]
    fn code_of_several_lines_stays_as_it_is() {
        check(
            "```rust\nlet a = *b;\n  # c\n```\n*d*",
            "[d:```rust]\n[c:let a = *b;]\n[c:  # c]\n[d:```]\n[i:d]",
        );
        check("~~~\n```\n~~\n~~~~ \nx", "[d:~~~]\n[c:```]\n[c:~~]\n[d:~~~~ ]\nx");
        check("  ```\n a\n\n  ```", "[d:  ```]\n[c: a]\n\n[d:  ```]");
        check("````\n```\n````\n", "[d:````]\n[c:```]\n[d:````]\n");
        check("```a``` b", "[c:a] b");
        check("```\n*a", "[d:```]\n[c:*a]");
        check("```", "[d:```]");
        check("``", "``");
    }

    /// Renders paragraphs, headings and code with a full Markdown parser.
    fn parsed(text: &str) -> Vec<Span> {
        use pulldown_cmark::{Event, Tag, TagEnd};
        let style_of = |tag: &Tag<'_>| match tag {
            Tag::Strong | Tag::Heading { .. } => Style::BOLD,
            Tag::Emphasis => Style::ITALIC,
            Tag::CodeBlock(_) => Style::CODE,
            _ => Style::PLAIN,
        };
        let (mut spans, mut styles) = (Vec::new(), vec![Style::PLAIN]);
        for event in pulldown_cmark::Parser::new(text) {
            let style = *styles.last().unwrap();
            match event {
                Event::Start(tag) => styles.push(style.and(style_of(&tag))),
                Event::End(end) => {
                    styles.pop();
                    if matches!(end, TagEnd::Paragraph | TagEnd::Heading(_)) {
                        add(&mut spans, Style::PLAIN, "\n");
                    }
                }
                Event::Text(text) => add(&mut spans, style, &text),
                Event::Code(text) => add(&mut spans, style.and(Style::CODE), &text),
                Event::SoftBreak => add(&mut spans, Style::PLAIN, "\n"),
                other => panic!("not expected: {other:?}"),
            }
        }
        spans
    }

    #[test]
    fn markdown_of_models_is_styled() {
        let pieces = [
            "*a*",
            "**b c**",
            "`d*`",
            "_e_",
            "***f***",
            "g",
            "__h__",
            "i_j_k",
            "2 * 3",
            "**l `m` n**",
            "**o *p* q**",
            "*r **s** t*",
            "(**u**),",
            "``v ` w``",
            "**x**y",
            "\u{e9}**\u{8a9e}**",
            "`",
            "**",
            "# z",
            "\u{201c}*aa*\u{201d}",
            "bb's",
        ];
        let mut rng = Rng::new(7);
        for n_lines in 0..2000 {
            let mut text = if n_lines % 5 == 0 { "## ".to_owned() } else { "A ".to_owned() };
            for _ in 0..5 {
                text = text + rng.pick(&pieces) + " ";
            }
            let text = text.trim_end().to_owned() + "\n";
            assert_eq!(shown(&rendered(&[&text])), shown(&parsed(&text)), "{text:?}");
        }
    }

    #[test]
    fn no_character_is_lost_but_markers() {
        let words =
            ["*", "**", "_", "`", "```", "\n", "# ", "- ", "1. ", "> ", "a", " ", "\\", "\u{e9}"];
        let mut rng = Rng::new(1);
        for _ in 0..2000 {
            let mut text = String::new();
            for _ in 0..12 {
                text += rng.pick(&words);
            }
            let whole = rendered(&[&text]);
            let letters: Vec<String> = text.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            assert_eq!(rendered(&letters), whole, "{text:?}");
            let kept = |text: &str| text.replace(['*', '_', '`', '#', ' '], "");
            let shown: String = whole.iter().map(|span| span.text.as_str()).collect();
            assert_eq!(kept(&shown), kept(&text), "{text:?}");
        }
    }
}
