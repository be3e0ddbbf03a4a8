//! `moeflux prefix warm`: reads prompts ahead of their use, so that they are saved.
//!
//! **Invariant:** prompts go through the service and the chat template as those of clients do, and
//! the command succeeds only if what it read can be found afterwards.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use moeflux::provider::error::grouped;
use moeflux::{CONTEXT_DEFAULT, Error, Model, TextLimit};
use moeflux_chat::{AskError, Chat, ChatOptions, PreparedPrompt};
use moeflux_prefix::{OwnerId, PrefixNamespace, StateNeed, StoreRole};
use moeflux_schedule::{
    Event, Job, N_TOKENS_SAVED_MIN, Options, SavedConversations, Service, State,
};
use moeflux_wire::{Prompt, chat};
use serde_json::Value;

use crate::commands::prefix::is_written_elsewhere;
use crate::failure::{CommandFailure, CommandResult};
use crate::model::{self, hub};
use crate::options::args::ModelArgs;
use crate::options::cache::{CacheArgs, CacheUse, OpenedCache, name_model};
use crate::options::prompt::{read_messages, read_prompt};
use crate::options::ranges;
use crate::output::print;
use crate::output::progress::Bar;
use crate::system::clock;
use crate::system::interrupt::Interrupt;

/// The last token of a text may be another one once the text goes on.
const N_TOKENS_OF_SEAM: usize = 4;

/// How often the progress is shown, and the end of saving is looked for.
const TICK: Duration = Duration::from_millis(50);

/// The arguments of `moeflux prefix warm`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "What is saved serves requests without a key, with the same model and the \
    same options that change its results (--backend, --precise, --kv-bits).")]
pub(crate) struct WarmArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    cache: CacheArgs,
    /// Tokens that the longest prompt has room for [default: as many as it needs]
    #[arg(long, value_name = "N", value_parser = ranges::tokens, allow_negative_numbers = true)]
    context: Option<NonZeroUsize>,
    /// Prompts: files *.json have a request of Chat Completions, or its messages; other files have
    /// a text with which prompts begin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// What a file asks for, before there is a model.
enum PromptFile {
    Text(String),
    Chat(Value),
}

/// What a loaded model's prompts are saved under.
type SavedUnder = (PrefixNamespace, StateNeed);

/// Reads the prompts and saves them. Prints a line for each.
///
/// # Errors
///
/// A file is no prompt, the model or the folder cannot be used, or a prompt was not saved.
pub(super) fn run(args: &WarmArgs) -> CommandResult {
    let interrupt = Interrupt::listen();
    let files: Vec<(&Path, PromptFile)> = args
        .files
        .iter()
        .map(|path| Ok((&**path, PromptFile::read(path)?)))
        .collect::<Result<_, Error>>()?;
    let opened = model::open(&args.model)?;
    let chat = Chat::open(&opened)?.with_replays(0, 0);
    let mut jobs = Vec::new();
    for (path, file) in files {
        jobs.push((path, file.job(path, &chat, &opened)?));
    }
    let n_most = jobs.iter().map(|(_, job)| job.prompt.len()).max().unwrap_or(0);
    let context = model::context_for(&opened, args.context, n_most.max(CONTEXT_DEFAULT))?;
    jobs.iter().try_for_each(|(_, job)| model::check_tokens(&opened, &job.prompt, context))?;
    let saved = opened_cache(args)?;
    let under = Arc::new(OnceLock::new());
    let service = start(args, (opened, &chat, context), (&saved, &under), &interrupt)?;
    for (path, job) in &jobs {
        read(&service, path, job.clone(), &interrupt)?;
    }
    wait_until_saved(&service, &interrupt)?;
    drop(service);
    let (namespace, need) = under.get().expect("the model was loaded");
    let mut unsaved = None;
    for (path, job) in &jobs {
        let tokens: Vec<u32> = job.prompt.iter().map(|token| token.0).collect();
        let n_saved = saved.store.find(*namespace, &tokens, *need).n_tokens;
        let (n_tokens, path) = (tokens.len(), path.display());
        let numbers = format!("{} of {} tokens", grouped(n_saved as u64), grouped(n_tokens as u64));
        print::line(&format!("{path}: {numbers} are saved"))?;
        if n_saved + N_TOKENS_SAVED_MIN < n_tokens {
            unsaved.get_or_insert(format!(
                "{path}: only {numbers} were saved: the folder, the drive or the writes of this \
                 day are at their limit (--cache-size, --cache-writes-per-day)"
            ));
        }
    }
    unsaved.map_or(Ok(()), |problem| Err(Error::Input(problem).into()))
}

impl PromptFile {
    fn read(path: &Path) -> Result<Self, Error> {
        if path.extension().is_some_and(|it| it.eq_ignore_ascii_case("json")) {
            return Ok(Self::Chat(Value::Object(read_messages(path)?)));
        }
        Ok(Self::Text(read_prompt(path)?))
    }

    /// Returns a job that reads the prompt and answers nothing.
    fn job(self, path: &Path, chat: &Chat, opened: &Model) -> CommandResult<Job> {
        let limit = TextLimit { n_tokens_max: opened.context_max(), ..TextLimit::default() };
        let sampling = chat.text().sampling(0);
        let job = match self {
            Self::Text(text) => {
                let prompt = chat.text().prompt_within(&text, &limit)?;
                let seam = prompt.len().saturating_sub(N_TOKENS_OF_SEAM);
                Job { split_points: vec![seam], ..Job::new(prompt, sampling) }
            }
            Self::Chat(body) => asked(path, body, chat, limit)?.job(sampling),
        };
        let n_tokens = job.prompt.len();
        if n_tokens < N_TOKENS_SAVED_MIN {
            let problem =
                format!("has {n_tokens} tokens: fewer than {N_TOKENS_SAVED_MIN} are not saved");
            return Err(Error::malformed(path, problem).into());
        }
        Ok(Job { n_tokens_max: Some(0), masks: None, ..job })
    }
}

/// Returns the prompt of a request as the server would make it.
fn asked(path: &Path, body: Value, chat: &Chat, limit: TextLimit) -> CommandResult<PreparedPrompt> {
    let malformed = |problem: &str| Error::malformed(path, problem);
    let parsed = chat::parse_json(body);
    let (request, _) = parsed.map_err(|failure| malformed(&failure.message))?;
    let Prompt::Chat(conversation, _) = request.prompt else {
        unreachable!("messages are a conversation")
    };
    let now_seconds = Some(clock::seconds_since_1970());
    let options = ChatOptions { now_seconds, limit, ..ChatOptions::default() };
    let prepared = chat.ask(&conversation, &request.rules, &options);
    Ok(prepared.map_err(|error| match error {
        AskError::Prompt(error) => error,
        other => malformed(&other.to_string()),
    })?)
}

/// Opens the folder, in which this process must write.
fn opened_cache(args: &WarmArgs) -> CommandResult<SavedConversations> {
    let used = CacheUse { owner_names: &[], off: None };
    let saved = match args.cache.open(&used)? {
        OpenedCache::Open(saved, _) => saved,
        OpenedCache::Refused(line) => return Err(Error::Input(line).into()),
        OpenedCache::Off => {
            let problem = "conversations are not saved with these options: nothing can be warmed";
            return Err(CommandFailure::Usage(problem.to_owned()));
        }
    };
    match saved.store.try_take_over() {
        Ok(StoreRole::Writer) => Ok(saved),
        Ok(StoreRole::Reader) => Err(is_written_elsewhere("save").into()),
        Err(error) => Err(Error::Machine(error.to_string()).into()),
    }
}

fn start(
    args: &WarmArgs,
    (opened, chat, context): (Model, &Chat, usize),
    (saved, under): (&SavedConversations, &Arc<OnceLock<SavedUnder>>),
    interrupt: &Interrupt,
) -> CommandResult<Service> {
    let mut options = Options::new(context);
    options.n_sessions = 1;
    options.saved = Some(saved.clone());
    let (backend, model_args) = (args.model.backend()?, args.model.clone());
    let (saved, under, interrupt) = (saved.clone(), Arc::clone(under), interrupt.clone());
    let name = hub::name_of(opened.path());
    let load = move |model| {
        let engine = model::load_on(backend, (model, context.into()), &model_args, &interrupt)?;
        name_model(Some(&saved), &engine, &name);
        let namespace = PrefixNamespace::new(&engine.state_identity(), OwnerId::ANONYMOUS);
        let need = match engine.is_recurrent() {
            true => StateNeed::StateAtEnd,
            false => StateNeed::NoState,
        };
        under.get_or_init(|| (namespace, need));
        Ok(engine)
    };
    let service = Service::start(model::loader(opened, load), Arc::clone(chat.text()), options)?;
    service.wait_until_open()?;
    Ok(service)
}

/// Reads a prompt.
fn read(service: &Service, path: &Path, job: Job, interrupt: &Interrupt) -> CommandResult {
    let n_tokens = job.prompt.len();
    let (sender, events) = channel();
    let ticket = service.submit(job, Box::new(sender));
    let ticket = ticket.map_err(|refusal| Error::malformed(path, refusal.to_string()))?;
    let bar = Bar::tokens("reading", n_tokens);
    loop {
        match events.recv_timeout(TICK) {
            Ok(Event::Failed(error)) => return Err(error.into()),
            Ok(Event::Finished { .. }) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
        if interrupt.is_set() {
            return Err(CommandFailure::interrupted());
        }
        bar.set(ticket.progress().n_done as u64);
    }
}

/// Waits until nothing is left to be saved: the service unloads the model only then.
fn wait_until_saved(service: &Service, interrupt: &Interrupt) -> CommandResult {
    let (_sender, nothing) = channel::<()>();
    service.unload();
    while service.state() == State::Ready {
        if interrupt.is_set() {
            return Err(CommandFailure::interrupted());
        }
        // Nothing is ever sent: this is a pause.
        let _pause = nothing.recv_timeout(TICK);
    }
    Ok(())
}
