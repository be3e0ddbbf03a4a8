//! What the model reads of a request: templates are rendered and texts become tokens.
//!
//! It takes a core for a while where texts are long, and is done beside the threads that serve.
//! **Invariant:** every token is one that the model has, and no prompt is empty.

use std::collections::VecDeque;

use moeflux::{Error, SamplerConfig, TokenId, Tokenizer};
use moeflux_chat::{AnswerStart, ChatOptions, ChatPrompt, Conversation};
use moeflux_schedule::Job;

use crate::http::bound::{self, Reading};
use crate::http::reply::failure_of;
use crate::http::shared::Shared;
use crate::wire::{Failure, FailureKind, Prompt, PromptText, Request};

/// A prompt with what its answers need.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) job: Job,
    /// How its answers are read.
    pub(crate) reading: Reading,
    /// The prompt's text, where it comes back before its answers.
    pub(crate) echo: Option<String>,
}

/// The jobs of a request, in the order of its prompts.
pub(crate) fn plan(shared: &Shared, request: Request) -> Result<VecDeque<Planned>, Failure> {
    shared.check_name(request.model.as_deref())?;
    let seed = request.sampling.seed.unwrap_or_else(|| shared.draw());
    let sampling = request.sampling.over(shared.served.text.sampling(seed));
    check_biases(&sampling, shared.served.text.tokenizer())?;
    let prompts = match &request.prompt {
        Prompt::Chat(conversation, options) => vec![read_chat(shared, conversation, options)?],
        Prompt::Texts(texts) if let [only] = &texts[..] => {
            vec![read(shared, ("prompt", only), request.is_echoed)?]
        }
        Prompt::Texts(texts) => {
            let read = |(prompt_idx, prompt): (usize, &PromptText)| {
                read(shared, (&format!("prompt[{prompt_idx}]"), prompt), request.is_echoed)
            };
            texts.iter().enumerate().map(read).collect::<Result<_, _>>()?
        }
    };
    let n_context = shared.served.service.context();
    let n_answer_tokens = request.n_tokens_max.unwrap_or(1).min(1);
    for prompt in &prompts {
        if prompt.tokens.len() + n_answer_tokens > n_context {
            return Err(Failure::too_long(prompt.tokens.len(), n_answer_tokens, n_context));
        }
    }
    let tools = match &request.prompt {
        Prompt::Chat(conversation, _) => bound::callable(&request, &conversation.tools),
        Prompt::Texts(_) => Vec::new(),
    };
    let planned = |(prompt_idx, prompt): (usize, Prepared)| {
        let first_answer = u64::try_from(prompt_idx * request.n_answers).unwrap_or_default();
        let mut sampling = sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(first_answer);
        let job = Job {
            prompt: prompt.tokens,
            parts_at: prompt.parts_at,
            n_answers: request.n_answers,
            n_tokens_max: request.n_tokens_max,
            scores_prompt: prompt.echo.is_some() && sampling.n_logprobs.is_some(),
            sampling,
            stops: request.stops.clone(),
            masks: bound::masks(shared, &request, (prompt.start, &tools))?,
        };
        let reading = Reading::new(shared, &request.rules, prompt.start, tools.clone());
        Ok(Planned { job, reading, echo: prompt.echo })
    };
    prompts.into_iter().enumerate().map(planned).collect()
}

/// The tokens of a prompt that are not to be answered.
pub(crate) fn tokens(shared: &Shared, prompt: &Prompt) -> Result<Vec<TokenId>, Failure> {
    let prepared = match prompt {
        Prompt::Chat(conversation, options) => read_chat(shared, conversation, options)?,
        Prompt::Texts(texts) => {
            let first = texts.first().expect("a request has a prompt");
            return match first {
                PromptText::Text(text) => {
                    shared.served.text.prompt(text).map_err(|error| failure_of(&error))
                }
                PromptText::Tokens(tokens) => Ok(tokens.clone()),
            };
        }
    };
    Ok(prepared.tokens)
}

/// A conversation as the template writes it.
pub(crate) fn render(
    shared: &Shared,
    conversation: &Conversation,
    options: &ChatOptions,
) -> Result<ChatPrompt, Failure> {
    let Some(format) = &shared.format else {
        let problem = "this model has no chat template: use /v1/completions";
        return Err(Failure::invalid("messages", problem));
    };
    let now_seconds = Some((shared.served.seconds_since_1970)());
    let options = ChatOptions { now_seconds, ..options.clone() };
    // Whatever a template says, it says of this conversation.
    let refused = |error: Error| Failure::new(FailureKind::Invalid, error.to_string());
    format.prompt(conversation, &options).map_err(refused)
}

struct Prepared {
    tokens: Vec<TokenId>,
    parts_at: Vec<usize>,
    start: AnswerStart,
    echo: Option<String>,
}

fn read_chat(
    shared: &Shared,
    conversation: &Conversation,
    options: &ChatOptions,
) -> Result<Prepared, Failure> {
    if !conversation.tools.is_empty() && shared.calls.is_none() {
        shared
            .note("calls of tools come back as text: the chat template writes none that is known");
    }
    let prompt = render(shared, conversation, options)?;
    let tokens =
        prompt.tokens(shared.served.text.tokenizer()).map_err(|error| failure_of(&error))?;
    if tokens.is_empty() {
        return Err(Failure::invalid("messages", "the template makes an empty prompt of these"));
    }
    let parts = match &shared.format {
        Some(format) => format.parts(conversation, options, &prompt.text),
        None => Vec::new(),
    };
    let parts_at = parts_at(shared.served.text.tokenizer(), &tokens, &parts);
    Ok(Prepared { tokens, parts_at, start: prompt.start, echo: None })
}

/// How many tokens lie within each of the first parts of a text: one less, as the last of them
/// may be another one where the text goes on differently.
fn parts_at(tokenizer: &Tokenizer, tokens: &[TokenId], parts: &[usize]) -> Vec<usize> {
    let mut ends = Vec::with_capacity(tokens.len());
    let mut end = 0;
    for token in tokens {
        end += tokenizer.token_bytes(*token).len();
        ends.push(end);
    }
    let within = |n_bytes: &usize| ends.partition_point(|end| end <= n_bytes).saturating_sub(1);
    parts.iter().map(within).filter(|n_tokens| *n_tokens > 0).collect()
}

fn read(
    shared: &Shared,
    (path, prompt): (&str, &PromptText),
    is_echoed: bool,
) -> Result<Prepared, Failure> {
    let tokenizer = shared.served.text.tokenizer();
    let tokens = match prompt {
        PromptText::Text(text) => {
            shared.served.text.prompt(text).map_err(|error| failure_of(&error))?
        }
        PromptText::Tokens(tokens) => {
            check_tokens(path, tokens, tokenizer)?;
            tokens.clone()
        }
    };
    if tokens.is_empty() {
        return Err(Failure::invalid(path, "has no tokens: give a text to go on with"));
    }
    let echo = is_echoed.then(|| match prompt {
        PromptText::Text(text) => text.clone(),
        PromptText::Tokens(tokens) => tokenizer.decode(tokens),
    });
    Ok(Prepared { tokens, parts_at: Vec::new(), start: AnswerStart::Text, echo })
}

/// Refuses ids that stand for nothing.
pub(crate) fn check_tokens(
    path: &str,
    tokens: &[TokenId],
    tokenizer: &Tokenizer,
) -> Result<(), Failure> {
    let n_vocab = tokenizer.vocab_size();
    match tokens.iter().position(|token| token.0 as usize >= n_vocab) {
        None => Ok(()),
        Some(token_idx) => {
            let token = tokens[token_idx].0;
            let problem = format!("there is no token {token}; the vocabulary has {n_vocab}");
            Err(Failure::invalid(&format!("{path}[{token_idx}]"), problem))
        }
    }
}

fn check_biases(sampling: &SamplerConfig, tokenizer: &Tokenizer) -> Result<(), Failure> {
    let n_vocab = tokenizer.vocab_size();
    let mut biases = sampling.logit_bias.iter().map(|(token, _)| token.0);
    match biases.find(|token| *token as usize >= n_vocab) {
        None => Ok(()),
        Some(token) => {
            let problem = format!("there is no such token; the vocabulary has {n_vocab}");
            Err(Failure::invalid(&format!("logit_bias.{token}"), problem))
        }
    }
}
