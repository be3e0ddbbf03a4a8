//! Renders a conversation as the prompt of its next answer, with the model's chat template.
//!
//! If a template refuses one way of writing a conversation, others are tried ([`TemplateVariant`]),
//! so a client need not know the template. A text to be continued is marked, rendered and cut at
//! the mark, as in transformers. [`ChatFormat::parts`] predicts where later prompts diverge from
//! this one.
//! **Invariant:** instructions after the first turns appear in the prompt, or there is an error;
//! the prompt is a function of template, conversation and options.

mod messages;
mod parts;
mod prepare;
mod thoughts;

use moeflux::{
    ChatTemplate, Error, Message, ModelText, Result, TemplateOptions, TextLimit, TokenId, Tokenizer,
};
use serde_json::{Map, Value as Json};

use crate::answer_reader::AnswerStart;
use crate::calls::format::CallFormat;
use crate::conversation::{Conversation, Ending, Turn};
use crate::format::messages::{LateSystem, TemplateNeeds, TemplateVariant};
use crate::options::{ChatOptions, OWN_VARIABLES};
use crate::thoughts::ThoughtFormat;

/// Marks the end of the text to be continued during rendering. Its trailing space shows whether the
/// template trims that text.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A model's conversation format.
#[derive(Debug)]
pub struct ChatFormat {
    template: ChatTemplate,
    thoughts: &'static ThoughtFormat,
    has_thoughts: bool,
    needs: TemplateNeeds,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    /// The text of the prompt.
    pub text: String,
    /// The state in which the answer begins, for an [`crate::answer_reader::AnswerReader`].
    pub start: AnswerStart,
}

impl ChatPrompt {
    /// Encodes the prompt.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<TokenId>> {
        self.tokens_within(tokenizer, &TextLimit::default())
    }

    /// Encodes the prompt within a limit.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_within`].
    pub fn tokens_within(&self, tokenizer: &Tokenizer, limit: &TextLimit) -> Result<Vec<TokenId>> {
        tokenizer.encode_within(&self.text, limit)
    }
}

/// The part of the last turn to be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Continued {
    Thoughts,
    Text,
}

impl ChatFormat {
    /// Opens the format of a model; `None` if it has none.
    ///
    /// # Errors
    /// As [`ModelText::chat_template`].
    pub fn open(text: &ModelText) -> Result<Option<Self>> {
        Ok(text.chat_template()?.map(Self::new))
    }

    /// Creates the format of a template.
    #[must_use]
    pub fn new(template: ChatTemplate) -> Self {
        let found = ThoughtFormat::of(&template);
        let (thoughts, has_thoughts) = (found.unwrap_or(ThoughtFormat::usual()), found.is_some());
        let needs = TemplateNeeds::of(&template);
        Self { template, thoughts, has_thoughts, needs }
    }

    /// Returns the format in which the template writes tool calls; `None` if it writes no known
    /// one.
    #[must_use]
    pub fn call_format(&self) -> Option<&'static CallFormat> {
        CallFormat::of(&self.template)
    }

    /// Returns the template's thought format; the usual one if it shows no thoughts.
    #[must_use]
    pub fn thought_format(&self) -> &'static ThoughtFormat {
        self.thoughts
    }

    /// Renders the prompt of the next answer.
    ///
    /// # Errors
    /// [`Error::Input`] if `options` set one of [`OWN_VARIABLES`], or the last turn cannot be
    /// continued; [`Error::Unsupported`] if the template omits a system message or changes the text
    /// to be continued; [`Error::Cancelled`] if rendering was cancelled; otherwise the error of the
    /// template for the first way of writing the conversation.
    pub fn prompt(&self, conversation: &Conversation, options: &ChatOptions) -> Result<ChatPrompt> {
        let text = self.marked(conversation, options, &[])?;
        let start = self.start(conversation, &text);
        Ok(ChatPrompt { text, start })
    }

    /// Renders a prompt in which marks replace the text and calls of some turns. Each mark comes
    /// with the index of its turn.
    fn marked(
        &self,
        conversation: &Conversation,
        options: &ChatOptions,
        marks: &[(usize, String)],
    ) -> Result<String> {
        if let Some(name) = OWN_VARIABLES.iter().find(|it| options.variables.contains_key(**it)) {
            return Err(Error::Input(format!(
                "the template's variable `{name}` is set from the conversation: remove it"
            )));
        }
        let continued = match conversation.ending {
            Ending::Continue => Some(continued(conversation)?),
            Ending::Answer | Ending::Closed => None,
        };
        let mut first_problem = None;
        for variant in messages::template_variants(conversation) {
            match self.render(conversation, options, (variant, continued), marks) {
                Ok(text) => return Ok(text),
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(problem) => first_problem.get_or_insert(problem),
            };
        }
        Err(first_problem.expect("there is at least one way"))
    }

    fn render(
        &self,
        conversation: &Conversation,
        options: &ChatOptions,
        (variant, continued): (TemplateVariant, Option<Continued>),
        marks: &[(usize, String)],
    ) -> Result<String> {
        let mut messages = messages::messages(conversation, variant, self.needs);
        for (turn_idx, mark) in marks {
            let message =
                &mut messages[messages::message_idx_of(conversation, *turn_idx, self.needs)];
            message.content = Json::from(mark.as_str());
            message.tool_calls = None;
        }
        let last = messages.last_mut().zip(continued);
        let wanted = last.map(|(message, continued)| mark(message, continued));
        let options = template_options(conversation, options, variant);
        let text = self.template.render(&messages, &options)?;
        if variant.late_system == LateSystem::System {
            let is_left_out = |late: &&str| !text.contains(late.trim());
            if messages::late_system(conversation).any(|late| is_left_out(&late)) {
                let problem = "the chat template drops a system message that follows other turns";
                return Err(Error::Unsupported(problem.to_owned()));
            }
        }
        match wanted {
            Some(wanted) => cut(text, &wanted),
            None => Ok(text),
        }
    }

    fn start(&self, conversation: &Conversation, prompt: &str) -> AnswerStart {
        if !self.has_thoughts {
            return AnswerStart::Text;
        }
        let ThoughtFormat { open, close, .. } = *self.thoughts;
        let opens = |text: &str| text.rfind(open) > text.rfind(close);
        match (conversation.ending, conversation.turns.last()) {
            (Ending::Continue, Some(Turn::Assistant(last))) if !last.text.is_empty() => {
                if opens(&last.text) { AnswerStart::Thought } else { AnswerStart::Text }
            }
            (Ending::Continue, Some(Turn::Assistant(last)))
                if last.thoughts.as_ref().is_some_and(|it| !it.is_empty()) =>
            {
                AnswerStart::Thought
            }
            _ if prompt.trim_end().ends_with(open) => AnswerStart::Thought,
            _ => AnswerStart::Open,
        }
    }
}

/// Sets thoughts under two names, since templates differ.
fn template_options(
    conversation: &Conversation,
    options: &ChatOptions,
    variant: TemplateVariant,
) -> TemplateOptions {
    let mut extra = Map::new();
    if let Some(thinking) = options.thinking {
        extra.insert("thinking".into(), thinking.into());
    }
    extra.extend(options.variables.clone());
    TemplateOptions {
        add_generation_prompt: conversation.ending == Ending::Answer,
        enable_thinking: options.thinking,
        tools: messages::tools(&conversation.tools, variant),
        now_seconds: options.now_seconds,
        extra,
        limit: options.limit.clone(),
    }
}

fn continued(conversation: &Conversation) -> Result<Continued> {
    match conversation.turns.last() {
        Some(Turn::Assistant(last)) if last.calls.is_empty() => {
            let has_thoughts = last.thoughts.as_ref().is_some_and(|it| !it.is_empty());
            let only_thinks = has_thoughts && last.text.is_empty();
            Ok(if only_thinks { Continued::Thoughts } else { Continued::Text })
        }
        Some(Turn::Assistant(_)) => {
            Err(Error::Input("an assistant turn with tool calls cannot be continued".into()))
        }
        _ => Err(Error::Input("only a final assistant turn can be continued".into())),
    }
}

/// Marks the end of the text to be continued, and returns that text.
fn mark(message: &mut Message, continued: Continued) -> String {
    let mut content = message.content.as_str().unwrap_or_default().to_owned();
    let text = match continued {
        Continued::Thoughts => message.reasoning.get_or_insert_default(),
        Continued::Text => &mut content,
    };
    let wanted = text.clone();
    text.push_str(MARK);
    message.content = Json::String(content);
    wanted
}

fn cut(mut text: String, wanted: &str) -> Result<String> {
    let marked = text.rfind(MARK.trim_end()).filter(|_| text.contains(wanted.trim()));
    let Some(at) = marked else {
        let problem = "the chat template alters the last assistant turn, so it cannot be continued";
        return Err(Error::Unsupported(problem.to_owned()));
    };
    let is_trimmed = !text[at..].starts_with(MARK);
    text.truncate(at);
    if is_trimmed {
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod replayed;
