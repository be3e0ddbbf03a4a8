//! Makes prompts from requests: renders templates and tokenises texts.
//!
//! Long texts occupy a core for a while, so this runs off the threads that serve. **Invariant:**
//! every token is in the model's vocabulary, and no prompt is empty.

use std::collections::VecDeque;

use moeflux::sample::SamplerConfig;
use moeflux::{Error, TextLimit, TokenId, Tokenizer};
use moeflux_chat::{
    AskError, ChatOptions, ChatPrompt, Conversation, PreparedPrompt, RuleError, RulePart,
};
use moeflux_schedule::{Job, Owner};

use crate::http::reply::failure_of;
use crate::http::shared::ModelState;
use moeflux_wire::{Failure, FailureKind, Prompt, PromptText, Request};

/// Upper bound on log-probabilities of echoed prompts in one response, at about 300 bytes each.
/// Evaluations request two per token.
const N_SCORES_MAX: usize = 1_000_000;

/// A prompt of a request, with the job that answers it.
#[derive(Clone, Debug)]
pub(crate) struct PromptJob {
    pub(crate) job: Job,
    /// How its answers are parsed. The tokens are in the job.
    pub(crate) prompt: PreparedPrompt,
    /// The prompt's text, if it is returned before its answers.
    pub(crate) echo: Option<String>,
}

/// Makes the jobs of a request, in the order of its prompts.
pub(crate) fn plan(
    state: &ModelState,
    owner: Owner,
    (request, limit): (Request, &TextLimit),
) -> Result<VecDeque<PromptJob>, Failure> {
    state.check_name(request.model.as_deref())?;
    let seed = request.sampling.seed.unwrap_or_else(|| state.server.draw());
    let sampling = request.sampling.over(state.text().sampling(seed));
    check_biases(&sampling, state.text().tokenizer())?;
    let prompts = match &request.prompt {
        Prompt::Chat(conversation, options) => {
            let options = options_of(state, owner, (options, limit));
            vec![(ask(state, &request, (conversation, &options))?, None)]
        }
        Prompt::Texts(texts) => read_all(state, &request, (texts, limit))?,
    };
    check_scores(&request, &sampling, &prompts)?;
    let prompt_job =
        |(prompt_idx, (mut prompt, echo)): (usize, (PreparedPrompt, Option<String>))| {
            let first_answer = u64::try_from(prompt_idx * request.n_answers).unwrap_or_default();
            let mut sampling = sampling.clone();
            sampling.seed = sampling.seed.wrapping_add(first_answer);
            let job = Job {
                owner,
                n_answers: request.n_answers,
                n_tokens_max: request.n_tokens_max,
                scores_prompt: echo.is_some() && sampling.n_logprobs.is_some(),
                stops: request.stops.clone(),
                ..prompt.take_job(sampling)
            };
            PromptJob { job, prompt, echo }
        };
    Ok(prompts.into_iter().enumerate().map(prompt_job).collect())
}

/// Returns the tokens of a prompt without answering it.
pub(crate) fn tokens(
    state: &ModelState,
    owner: Owner,
    (prompt, limit): (&Prompt, &TextLimit),
) -> Result<Vec<TokenId>, Failure> {
    match prompt {
        Prompt::Chat(conversation, options) => {
            check_template(state)?;
            let options = options_of(state, owner, (options, limit));
            let tokens = state.chat.tokens(conversation, &options);
            let tokens = tokens.map_err(refused_by_template)?;
            check_not_empty(&tokens)?;
            Ok(tokens)
        }
        Prompt::Texts(texts) => {
            let first = texts.first().expect("a request has a prompt");
            match first {
                PromptText::Text(text) => state.text().prompt_within(text, limit),
                PromptText::Bare(text) => state.text().tokenizer().encode_within(text, limit),
                PromptText::Tokens(tokens) => Ok(tokens.clone()),
            }
            .map_err(|error| failure_of(&error))
        }
    }
}

/// Renders a conversation with the template.
pub(crate) fn render(
    state: &ModelState,
    conversation: &Conversation,
    options: &ChatOptions,
    limit: &TextLimit,
) -> Result<ChatPrompt, Failure> {
    check_template(state)?;
    let options = options_of(state, Owner::default(), (options, limit));
    state.chat.render(conversation, &options).map_err(refused_by_template)
}

fn options_of(
    state: &ModelState,
    owner: Owner,
    (options, limit): (&ChatOptions, &TextLimit),
) -> ChatOptions {
    let now_seconds = Some((state.served.seconds_since_1970)());
    ChatOptions { now_seconds, limit: limit.clone(), owner: owner.0, ..options.clone() }
}

fn check_template(state: &ModelState) -> Result<(), Failure> {
    if state.chat.has_template() {
        return Ok(());
    }
    let problem = "this model has no chat template: use /v1/completions";
    Err(Failure::invalid("messages", problem))
}

fn check_not_empty(tokens: &[TokenId]) -> Result<(), Failure> {
    if tokens.is_empty() {
        return Err(Failure::invalid(
            "messages",
            "the chat template turns these into an empty prompt",
        ));
    }
    Ok(())
}

/// Every error of a template concerns the conversation that was rendered.
fn refused_by_template(error: Error) -> Failure {
    match error {
        Error::Input(_) | Error::Unsupported(_) => {
            Failure::new(FailureKind::Invalid, error.to_string())
        }
        // Omits the path of its file, which does not concern clients.
        Error::Malformed { problem, .. } => Failure::new(FailureKind::Invalid, problem),
        error => failure_of(&error),
    }
}

fn refused(request: &Request, error: AskError) -> Failure {
    match error {
        AskError::Prompt(error) => refused_by_template(error),
        AskError::Rules(RuleError { part: RulePart::Form, problem, .. })
            if request.form_field.is_some() =>
        {
            Failure::invalid(request.form_field.as_deref().unwrap_or_default(), problem)
        }
        AskError::Rules(refusal) => Failure::invalid("tool_choice", refusal.problem),
        other => Failure::new(FailureKind::Invalid, other.to_string()),
    }
}

fn ask(
    state: &ModelState,
    request: &Request,
    (conversation, options): (&Conversation, &ChatOptions),
) -> Result<PreparedPrompt, Failure> {
    check_template(state)?;
    if !conversation.tools.is_empty() && !state.chat.reads_calls() {
        state
            .server
            .note("tool calls are returned as text: the chat template uses no known call format");
    }
    let prompt = state.chat.ask(conversation, &request.rules, options);
    let prompt = prompt.map_err(|error| refused(request, error))?;
    check_not_empty(&prompt.tokens)?;
    check_length(state, request, &prompt.tokens)?;
    Ok(prompt)
}

/// Tokenises texts to continue, each with the text that is echoed before its answers.
fn read_all(
    state: &ModelState,
    request: &Request,
    (texts, limit): (&[PromptText], &TextLimit),
) -> Result<Vec<(PreparedPrompt, Option<String>)>, Failure> {
    let mut prompts: Vec<(PreparedPrompt, Option<String>)> = Vec::new();
    for (prompt_idx, text) in texts.iter().enumerate() {
        let path = match texts.len() {
            1 => "prompt".to_owned(),
            _ => format!("prompt[{prompt_idx}]"),
        };
        let tokens = read(state, (&path, text), limit)?;
        check_length(state, request, &tokens)?;
        let echo = request.is_echoed.then(|| match text {
            PromptText::Text(text) | PromptText::Bare(text) => text.clone(),
            PromptText::Tokens(tokens) => state.text().tokenizer().decode(tokens),
        });
        // One mask is enough: the answers to all prompts begin in the same way.
        let prompt = match prompts.first() {
            Some((first, _)) => first.with_tokens(tokens),
            None => {
                let prompt = state.chat.ask_to_continue(tokens, &request.rules);
                prompt.map_err(|error| refused(request, error))?
            }
        };
        prompts.push((prompt, echo));
    }
    Ok(prompts)
}

fn read(
    state: &ModelState,
    (path, prompt): (&str, &PromptText),
    limit: &TextLimit,
) -> Result<Vec<TokenId>, Failure> {
    let tokenizer = state.text().tokenizer();
    let tokens = match prompt {
        PromptText::Text(text) => state.text().prompt_within(text, limit),
        PromptText::Bare(text) => tokenizer.encode_within(text, limit),
        PromptText::Tokens(tokens) => {
            check_tokens(path, tokens, tokenizer)?;
            Ok(tokens.clone())
        }
    };
    let tokens = tokens.map_err(|error| failure_of(&error))?;
    if tokens.is_empty() {
        return Err(Failure::invalid(path, "has no tokens: give a text to continue"));
    }
    Ok(tokens)
}

fn check_length(state: &ModelState, request: &Request, tokens: &[TokenId]) -> Result<(), Failure> {
    let n_context = state.served.service.context();
    let n_answer_tokens = request.n_tokens_max.unwrap_or(1).min(1);
    if tokens.len() + n_answer_tokens > n_context {
        return Err(Failure::too_long(tokens.len(), n_answer_tokens, n_context));
    }
    Ok(())
}

/// Refuses ids outside the vocabulary.
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

/// Limits echoed scores: each answer repeats those of its prompt, and the scheduler does not wait
/// for their reader.
fn check_scores(
    request: &Request,
    sampling: &SamplerConfig,
    prompts: &[(PreparedPrompt, Option<String>)],
) -> Result<(), Failure> {
    let Some(n_top) = sampling.n_logprobs.filter(|_| request.is_echoed) else { return Ok(()) };
    let n_tokens: usize = prompts.iter().map(|(prompt, _)| prompt.tokens.len()).sum();
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
