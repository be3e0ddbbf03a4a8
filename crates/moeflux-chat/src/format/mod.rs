//! Turns a conversation into the prompt of its next answer, by the model's chat template.
//!
//! A template that refuses one way of telling a conversation is offered the others
//! ([`crate::messages::Dress`]), so that a client needs not know the template. Text that is to go
//! on is marked, rendered and cut behind the mark, as transformers does it.
//! [`ChatFormat::parts`] says where later prompts are likely to part from this one.
//! **Invariant:** instructions behind the first turns are in the prompt, or there is an error; and
//! the prompt is a function of template, conversation and options.

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
use crate::messages::{self, Dress, Expected, LateSystem};
use crate::options::{ChatOptions, OWN_VARIABLES};
use crate::thoughts::ThoughtFormat;

/// Stands behind the text that goes on while it is rendered. With the blank at its end it shows
/// whether the template trims that text.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A model's format of conversations.
#[derive(Debug)]
pub struct ChatFormat {
    template: ChatTemplate,
    thoughts: &'static ThoughtFormat,
    has_thoughts: bool,
    expected: Expected,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatPrompt {
    /// What the model reads.
    pub text: String,
    /// What the answer begins with, for an [`crate::answer_reader::AnswerReader`].
    pub start: AnswerStart,
}

impl ChatPrompt {
    /// What the model reads, in tokens.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<TokenId>> {
        self.tokens_within(tokenizer, &TextLimit::default())
    }

    /// The same as far as the limit allows.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_within`].
    pub fn tokens_within(&self, tokenizer: &Tokenizer, limit: &TextLimit) -> Result<Vec<TokenId>> {
        tokenizer.encode_within(&self.text, limit)
    }
}

/// What of the last turn goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Continued {
    Thoughts,
    Text,
}

impl ChatFormat {
    /// The format of a model; `None` if it has none.
    ///
    /// # Errors
    /// As [`ModelText::chat_template`].
    pub fn open(text: &ModelText) -> Result<Option<Self>> {
        Ok(text.chat_template()?.map(Self::new))
    }

    /// The format that a template makes.
    #[must_use]
    pub fn new(template: ChatTemplate) -> Self {
        let found = ThoughtFormat::of(&template);
        let (thoughts, has_thoughts) = (found.unwrap_or(ThoughtFormat::usual()), found.is_some());
        let expected = Expected::of(&template);
        Self { template, thoughts, has_thoughts, expected }
    }

    /// The format in which the template writes calls of tools; `None` if it writes none that is
    /// known.
    #[must_use]
    pub fn call_format(&self) -> Option<&'static CallFormat> {
        CallFormat::of(&self.template)
    }

    /// How the template tells thoughts from text; the usual way if it shows no thoughts.
    #[must_use]
    pub fn thought_format(&self) -> &'static ThoughtFormat {
        self.thoughts
    }

    /// The prompt of the next answer.
    ///
    /// # Errors
    /// What the template refuses; a variable that is not the caller's; a last turn that cannot be
    /// continued.
    pub fn prompt(&self, conversation: &Conversation, options: &ChatOptions) -> Result<ChatPrompt> {
        let text = self.marked(conversation, options, &[])?;
        let start = self.start(conversation, &text);
        Ok(ChatPrompt { text, start })
    }

    /// The text of a prompt in which some turns have only a mark for text and calls. Marks are by
    /// the numbers of the turns.
    fn marked(
        &self,
        conversation: &Conversation,
        options: &ChatOptions,
        marks: &[(usize, String)],
    ) -> Result<String> {
        if let Some(name) = OWN_VARIABLES.iter().find(|it| options.variables.contains_key(**it)) {
            return Err(Error::Input(format!(
                "the template's variable `{name}` follows from the conversation: leave it out"
            )));
        }
        let continued = match conversation.ending {
            Ending::Continue => Some(continued(conversation)?),
            Ending::Answer | Ending::Closed => None,
        };
        let mut first_problem = None;
        for dress in messages::dresses(conversation) {
            match self.render(conversation, options, (dress, continued), marks) {
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
        (dress, continued): (Dress, Option<Continued>),
        marks: &[(usize, String)],
    ) -> Result<String> {
        let mut messages = messages::messages(conversation, dress, self.expected);
        for (turn_idx, mark) in marks {
            let message = &mut messages[messages::place_of(conversation, *turn_idx, self.expected)];
            message.content = Json::from(mark.as_str());
            message.tool_calls = None;
        }
        let last = messages.last_mut().zip(continued);
        let wanted = last.map(|(message, continued)| mark(message, continued));
        let options = template_options(conversation, options, dress);
        let text = self.template.render(&messages, &options)?;
        if dress.late_system == LateSystem::System {
            let is_left_out = |late: &&str| !text.contains(late.trim());
            if messages::late_system(conversation).any(|late| is_left_out(&late)) {
                let problem = "the chat template leaves out a system message behind other turns";
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

/// Templates ask for thoughts by two names.
fn template_options(
    conversation: &Conversation,
    options: &ChatOptions,
    dress: Dress,
) -> TemplateOptions {
    let mut extra = Map::new();
    if let Some(thinking) = options.thinking {
        extra.insert("thinking".into(), thinking.into());
    }
    extra.extend(options.variables.clone());
    TemplateOptions {
        add_generation_prompt: conversation.ending == Ending::Answer,
        enable_thinking: options.thinking,
        tools: messages::tools(&conversation.tools, dress),
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
            Err(Error::Input("a turn of the assistant that ends with calls cannot go on".into()))
        }
        _ => Err(Error::Input("only a last turn of the assistant can go on".into())),
    }
}

/// Marks the end of what goes on; returns that.
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
        let problem =
            "the chat template changes the assistant's last turn, so that it cannot go on";
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
