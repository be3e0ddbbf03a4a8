//! What the model reads of a request: templates are rendered and texts become tokens.
//!
//! It takes a core for a while where texts are long, and is done beside the threads that serve.
//! **Invariant:** every token is one that the model has, and no prompt is empty.

use std::collections::VecDeque;

use moeflux::{Error, SamplerConfig, TextLimit, TokenId, Tokenizer};
use moeflux_chat::{
    AnswerStart, ChatFormat, ChatOptions, ChatPrompt, Conversation, PromptKey, ThoughtFormat,
};
use moeflux_schedule::{Job, Owner};

use crate::http::reply::failure_of;
use crate::http::rules::{self, Reading};
use crate::http::shared::Shared;
use crate::wire::{Failure, FailureKind, Prompt, PromptText, Request};

/// Log-probabilities of echoed prompts in one response, at some 300 bytes each. Evaluations ask for
/// two per token.
const N_SCORES_MAX: usize = 1_000_000;

/// A prompt with what its answers need.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) job: Job,
    /// How its answers are read.
    pub(crate) reading: Reading,
    /// The prompt's text, where it comes back before its answers.
    pub(crate) echo: Option<String>,
    /// Earlier answers whose tokens are those that were sampled.
    pub(crate) n_replayed: usize,
    /// By which its answers are kept for histories that come back, if they are.
    pub(crate) key: Option<PromptKey>,
}

/// The jobs of a request, in the order of its prompts.
pub(crate) fn plan(
    shared: &Shared,
    owner: Owner,
    (request, limit): (Request, &TextLimit),
) -> Result<VecDeque<Planned>, Failure> {
    shared.check_name(request.model.as_deref())?;
    let seed = request.sampling.seed.unwrap_or_else(|| shared.draw());
    let sampling = request.sampling.over(shared.served.text.sampling(seed));
    check_biases(&sampling, shared.served.text.tokenizer())?;
    let prompts = match &request.prompt {
        Prompt::Chat(conversation, options) => {
            vec![read_chat(shared, owner, (conversation, options, limit))?]
        }
        Prompt::Texts(texts) if let [only] = &texts[..] => {
            vec![read(shared, ("prompt", only), (request.is_echoed, limit))?]
        }
        Prompt::Texts(texts) => {
            let read = |(prompt_idx, prompt): (usize, &PromptText)| {
                let path = format!("prompt[{prompt_idx}]");
                read(shared, (&path, prompt), (request.is_echoed, limit))
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
        Prompt::Chat(conversation, _) => request.rules.callable(&conversation.tools),
        Prompt::Texts(_) => Vec::new(),
    };
    check_scores(&request, &sampling, &prompts)?;
    // One is enough: there is one conversation, or all prompts begin their answers alike.
    let start = prompts.first().expect("a request has a prompt").start;
    let masks = rules::masks(shared, &request, (start, &tools))?;
    let planned = |(prompt_idx, prompt): (usize, Prepared)| {
        let first_answer = u64::try_from(prompt_idx * request.n_answers).unwrap_or_default();
        let mut sampling = sampling.clone();
        sampling.seed = sampling.seed.wrapping_add(first_answer);
        let job = Job {
            owner,
            prompt: prompt.tokens,
            parts_at: prompt.parts_at,
            n_answers: request.n_answers,
            n_tokens_max: request.n_tokens_max,
            scores_prompt: prompt.echo.is_some() && sampling.n_logprobs.is_some(),
            sampling,
            stops: request.stops.clone(),
            masks: masks.clone(),
        };
        let begins = (prompt.start, prompt.thoughts);
        let reading = Reading::new(shared, &request.rules, begins, tools.clone());
        let Prepared { echo, n_replayed, key, .. } = prompt;
        Planned { job, reading, echo, n_replayed, key }
    };
    Ok(prompts.into_iter().enumerate().map(planned).collect())
}

/// The tokens of a prompt that are not to be answered.
pub(crate) fn tokens(
    shared: &Shared,
    owner: Owner,
    (prompt, limit): (&Prompt, &TextLimit),
) -> Result<Vec<TokenId>, Failure> {
    let prepared = match prompt {
        Prompt::Chat(conversation, options) => {
            read_chat(shared, owner, (conversation, options, limit))?
        }
        Prompt::Texts(texts) => {
            let first = texts.first().expect("a request has a prompt");
            return match first {
                PromptText::Text(text) => shared.served.text.prompt_within(text, limit),
                PromptText::Bare(text) => shared.served.text.tokenizer().encode_within(text, limit),
                PromptText::Tokens(tokens) => Ok(tokens.clone()),
            }
            .map_err(|error| failure_of(&error));
        }
    };
    Ok(prepared.tokens)
}

/// A conversation as the template writes it.
pub(crate) fn render(
    shared: &Shared,
    conversation: &Conversation,
    options: &ChatOptions,
    limit: &TextLimit,
) -> Result<ChatPrompt, Failure> {
    let (format, options) = format_of(shared, options, limit)?;
    format.prompt(conversation, &options).map_err(refused_by_template)
}

fn format_of<'s>(
    shared: &'s Shared,
    options: &ChatOptions,
    limit: &TextLimit,
) -> Result<(&'s ChatFormat, ChatOptions), Failure> {
    let Some(format) = &shared.format else {
        let problem = "this model has no chat template: use /v1/completions";
        return Err(Failure::invalid("messages", problem));
    };
    let now_seconds = Some((shared.served.seconds_since_1970)());
    Ok((format, ChatOptions { now_seconds, limit: limit.clone(), ..options.clone() }))
}

/// Whatever a template says, it says of this conversation.
fn refused_by_template(error: Error) -> Failure {
    match error {
        Error::Input(_) | Error::Unsupported(_) => {
            Failure::new(FailureKind::Invalid, error.to_string())
        }
        // Without the path of its file, which is no client's business.
        Error::Malformed { problem, .. } => Failure::new(FailureKind::Invalid, problem),
        error => failure_of(&error),
    }
}

struct Prepared {
    tokens: Vec<TokenId>,
    parts_at: Vec<usize>,
    start: AnswerStart,
    thoughts: &'static ThoughtFormat,
    echo: Option<String>,
    n_replayed: usize,
    key: Option<PromptKey>,
}

fn read_chat(
    shared: &Shared,
    owner: Owner,
    (conversation, options, limit): (&Conversation, &ChatOptions, &TextLimit),
) -> Result<Prepared, Failure> {
    if !conversation.tools.is_empty() && shared.calls.is_none() {
        shared
            .note("calls of tools come back as text: the chat template writes none that is known");
    }
    let (format, options) = format_of(shared, options, limit)?;
    let tokenizer = shared.served.text.tokenizer();
    let replays = shared.replays(owner).map(|it| it.clone());
    let prompt = format.prepare(conversation, &options, tokenizer, replays.as_ref());
    let prompt = prompt.map_err(refused_by_template)?;
    if prompt.tokens.is_empty() {
        return Err(Failure::invalid("messages", "the template makes an empty prompt of these"));
    }
    let n_replayed = prompt.n_replayed();
    if let Some(mut replays) = shared.replays(owner).filter(|_| n_replayed > 0) {
        replays.used(&prompt);
    }
    let moeflux_chat::Prepared { tokens, start, parts_at, key, .. } = prompt;
    let thoughts = format.thought_format();
    Ok(Prepared { tokens, parts_at, start, thoughts, echo: None, n_replayed, key })
}

fn read(
    shared: &Shared,
    (path, prompt): (&str, &PromptText),
    (is_echoed, limit): (bool, &TextLimit),
) -> Result<Prepared, Failure> {
    let tokenizer = shared.served.text.tokenizer();
    let tokens = match prompt {
        PromptText::Text(text) => shared.served.text.prompt_within(text, limit),
        PromptText::Bare(text) => tokenizer.encode_within(text, limit),
        PromptText::Tokens(tokens) => {
            check_tokens(path, tokens, tokenizer)?;
            Ok(tokens.clone())
        }
    };
    let tokens = tokens.map_err(|error| failure_of(&error))?;
    if tokens.is_empty() {
        return Err(Failure::invalid(path, "has no tokens: give a text to go on with"));
    }
    let echo = is_echoed.then(|| match prompt {
        PromptText::Text(text) | PromptText::Bare(text) => text.clone(),
        PromptText::Tokens(tokens) => tokenizer.decode(tokens),
    });
    let (parts_at, start, thoughts) = (Vec::new(), AnswerStart::Text, ThoughtFormat::usual());
    Ok(Prepared { tokens, parts_at, start, thoughts, echo, n_replayed: 0, key: None })
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

/// Each answer repeats the scores of its prompt, and the scheduler does not wait for their reader.
fn check_scores(
    request: &Request,
    sampling: &SamplerConfig,
    prompts: &[Prepared],
) -> Result<(), Failure> {
    let Some(n_top) = sampling.n_logprobs.filter(|_| request.is_echoed) else { return Ok(()) };
    let n_tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let n_scores = n_tokens.saturating_mul(request.n_answers).saturating_mul(1 + n_top);
    if n_scores <= N_SCORES_MAX {
        return Ok(());
    }
    let problem = format!(
        "{n_scores} log-probabilities of prompts are too many; the limit is {N_SCORES_MAX}: ask \
         for fewer, or with a smaller `n`"
    );
    Err(Failure::invalid("logprobs", problem))
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
