//! An answer on the screen: dim reasoning, text with its markup, one line per call.
//!
//! Without styles, text is shown as it is, and reasoning is enclosed in markers. **Invariant:**
//! everything that the model wrote is shown, except markup and the blank space around it.

use std::io::Write;

use moeflux::Result;
use moeflux_chat::{AnswerPart, Call};
use serde_json::{Value, json};

use crate::commands::chat::markdown::Markdown;
use crate::output::sanitizer::Sanitizer;
use crate::output::screen::Screen;
use crate::output::screen::style::{Span, Style};

/// Enclose reasoning where there are no styles.
const THOUGHT_MARKERS: [&str; 2] = ["<think>\n", "\n</think>"];

/// An answer on its way to the screen.
#[derive(Debug, Default)]
pub(crate) struct AnswerDisplay {
    sanitizer: Sanitizer,
    markdown: Markdown,
    is_in_thought: bool,
}

impl AnswerDisplay {
    /// Shows the next parts of the answer.
    pub(crate) fn show<W: Write>(
        &mut self,
        parts: Vec<AnswerPart>,
        screen: &mut Screen<W>,
    ) -> Result<()> {
        for part in parts {
            match part {
                AnswerPart::Thought(text) => self.thought(&text, screen)?,
                AnswerPart::Text(text) => self.text(&text, screen)?,
                AnswerPart::CallEnded { name, arguments, .. } => {
                    self.end_text(screen)?;
                    let call = Call::from_text(String::new(), name, &arguments);
                    screen.line(Style::CODE, &line_of(&call))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends the answer.
    pub(crate) fn end<W: Write>(mut self, screen: &mut Screen<W>) -> Result<()> {
        self.end_text(screen)
    }

    fn thought<W: Write>(&mut self, text: &str, screen: &mut Screen<W>) -> Result<()> {
        let has_styles = screen.has_styles();
        let marker = if self.is_in_thought || has_styles { "" } else { THOUGHT_MARKERS[0] };
        self.is_in_thought = true;
        let text = if screen.is_terminal() { self.sanitizer.push(text) } else { text.to_owned() };
        screen.text(&[Span::new(Style::PLAIN, marker), Span::new(Style::DIM, &text)])
    }

    fn text<W: Write>(&mut self, text: &str, screen: &mut Screen<W>) -> Result<()> {
        self.end_thought(screen)?;
        if !screen.is_terminal() {
            return screen.text(&[Span::new(Style::PLAIN, text)]);
        }
        let text = self.sanitizer.push(text);
        if !screen.has_styles() {
            return screen.text(&[Span::new(Style::PLAIN, &text)]);
        }
        screen.text(&self.markdown.push(&text))
    }

    fn end_thought<W: Write>(&mut self, screen: &mut Screen<W>) -> Result<()> {
        if !std::mem::take(&mut self.is_in_thought) {
            return Ok(());
        }
        let rest = self.sanitizer.finish();
        let marker = if screen.has_styles() { "" } else { THOUGHT_MARKERS[1] };
        screen.text(&[Span::new(Style::DIM, rest), Span::new(Style::PLAIN, marker)])?;
        screen.text(&[Span::new(Style::PLAIN, "\n\n")])
    }

    /// Flushes held text and ends the line.
    fn end_text<W: Write>(&mut self, screen: &mut Screen<W>) -> Result<()> {
        if self.is_in_thought {
            self.is_in_thought = false;
            let marker = if screen.has_styles() { "" } else { THOUGHT_MARKERS[1] };
            screen.text(&[Span::new(Style::PLAIN, marker)])?;
        }
        let rest = self.sanitizer.finish();
        let mut spans = self.markdown.push(rest);
        spans.extend(self.markdown.finish());
        screen.text(&spans)?;
        screen.end_line()
    }
}

/// Formats a call as a line of JSON.
fn line_of(call: &Call) -> String {
    json!({"name": call.name, "arguments": Value::Object(call.arguments.clone())}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::screen::Abilities;

    fn shown(parts: Vec<AnswerPart>, abilities: Option<Abilities>) -> String {
        let mut written = Vec::new();
        let mut screen = Screen::new(&mut written, abilities, 80);
        let mut display = AnswerDisplay::default();
        display.show(parts, &mut screen).unwrap();
        display.end(&mut screen).unwrap();
        String::from_utf8(written).unwrap()
    }

    #[test]
    fn each_part_has_its_look() {
        let parts = || {
            let texts = ["**a", "**\r", "\nb\x1b"].map(|it| AnswerPart::Text(it.to_owned()));
            let thoughts = ["I *th", "ink*"].map(|it| AnswerPart::Thought(it.to_owned()));
            let call = AnswerPart::CallEnded {
                call_idx: 0,
                name: "f".into(),
                arguments: r#"{"b": 1, "a": "\n"}"#.into(),
            };
            thoughts.into_iter().chain(texts).chain([call]).collect::<Vec<_>>()
        };
        let line = r#"{"name":"f","arguments":{"b":1,"a":"\n"}}"#;
        let styled = Some(Abilities { has_styles: true, moves_cursor: true });
        let expected = format!(
            "\x1b[2mI *th\x1b[0m\x1b[2mink*\x1b[0m\n\n\x1b[1ma\x1b[0m\nb^[\n\x1b[36m{line}\x1b[0m\n"
        );
        assert_eq!(shown(parts(), styled).replace("\x1b[2m\x1b[0m", ""), expected);
        let plain = Some(Abilities { has_styles: false, moves_cursor: true });
        let thought = "<think>\nI *think*\n</think>\n\n";
        let expected = format!("{thought}**a**\nb^[\n{line}\n");
        assert_eq!(shown(parts(), plain), expected);
        let expected = format!("{thought}**a**\r\nb\x1b\n{line}\n");
        assert_eq!(shown(parts(), None), expected);
    }

    #[test]
    fn a_thought_may_be_all() {
        let thought = || vec![AnswerPart::Thought("T".to_owned())];
        assert_eq!(shown(thought(), None), "<think>\nT\n</think>\n");
        let styled = Some(Abilities { has_styles: true, moves_cursor: false });
        assert_eq!(shown(thought(), styled), "\x1b[2mT\x1b[0m\n");
        assert_eq!(shown(Vec::new(), None), "");
    }
}
