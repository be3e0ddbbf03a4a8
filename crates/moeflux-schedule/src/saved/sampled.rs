//! The sampled tokens of answers on a drive, for histories that come back after a restart.
//!
//! What the tokens were read as is bytes here. **Invariant:** callers never wait for a drive to
//! write; an answer that cannot be written is forgotten.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use moeflux::{Error, Result, TokenId};
use moeflux_prefix::{
    NewObject, ObjectId, ObjectKind, PlaceHasher, PrefixNamespace, Store, WriteRefusal,
};

use crate::job::Owner;
use crate::saved::SavedConversations;
use crate::saved::object::numbers;

/// Distinguishes answers from other objects of the same text.
const IDENTITY: &[u8] = b"answers 1";

/// Upper bound on the answers that wait to be written.
const N_WAITING_MAX: usize = 64;

/// Upper bound on the bytes of what the tokens of an answer were read as.
const CONTENT_BYTES_MAX: usize = 16 << 20;

/// The tokens of this many answers take as long to read as one millisecond: an answer leaves the
/// folder about when the rest of its conversation does.
const TOKENS_PER_MS: u64 = 100;

/// An answer that was saved.
#[derive(Clone, Debug)]
pub struct SavedAnswer {
    /// The number of tokens of its prompt.
    pub n_prompt_tokens: usize,
    /// The [`SavedAnswers::prompt_hash`] of its prompt.
    pub prompt_hash: u128,
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// What they were read as.
    pub content: Vec<u8>,
}

/// An answer to save.
#[derive(Debug)]
pub struct NewAnswer {
    /// Who asked.
    pub owner: Owner,
    /// The tokens of its prompt.
    pub prompt: Arc<[TokenId]>,
    /// Its tokens.
    pub tokens: Vec<TokenId>,
    /// What they were read as.
    pub content: Vec<u8>,
}

/// Answers that came back in a prompt.
#[derive(Debug)]
pub struct UsedAnswers {
    /// Who asked.
    pub owner: Owner,
    /// The tokens of the prompt.
    pub prompt: Vec<TokenId>,
    /// The places of the answers in it, ascending.
    pub places: Vec<Range<usize>>,
}

/// What the thread does.
enum AnswerTask {
    Save(NewAnswer),
    MarkUsed(UsedAnswers),
}

/// The answers of a model on a drive. Dropping it waits until the last ones were written.
pub struct SavedAnswers {
    saved: SavedConversations,
    identity: Vec<u8>,
    tasks: Option<SyncSender<AnswerTask>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for SavedAnswers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedAnswers").field("saved", &self.saved).finish_non_exhaustive()
    }
}

impl SavedAnswers {
    /// Starts the thread that writes. `text_fingerprint` is that of the model's text, without which
    /// tokens mean nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Machine`] if the thread cannot be created.
    pub fn start(saved: SavedConversations, text_fingerprint: u64) -> Result<Self> {
        let identity = [IDENTITY, &text_fingerprint.to_le_bytes()].concat();
        let (tasks, received) = sync_channel(N_WAITING_MAX);
        let (of_thread, owned) = (saved.clone(), identity.clone());
        let builder = std::thread::Builder::new().name("moeflux-answers".to_owned());
        let spawned = builder.spawn(move || run(&of_thread, &owned, &received));
        let thread = spawned.map_err(|error| {
            Error::Machine(format!("cannot start the thread of saved answers: {error}"))
        })?;
        Ok(Self { saved, identity, tasks: Some(tasks), thread: Some(thread) })
    }

    /// Returns a hash of a prompt, by which its answers are found; `None` for owners whose answers
    /// are not saved.
    #[must_use]
    pub fn prompt_hash(&self, owner: Owner, prompt: &[TokenId]) -> Option<u128> {
        let mut hasher = PlaceHasher::new(namespace(&self.saved, &self.identity, owner)?);
        hasher.add(&numbers(prompt));
        Some(hasher.key().number())
    }

    /// Reads the answers of an owner that were used last, of `n_bytes_max` bytes in files at most.
    /// The latest is the last.
    #[must_use]
    pub fn load(&self, owner: Owner, n_bytes_max: usize) -> Vec<SavedAnswer> {
        let Some(namespace) = namespace(&self.saved, &self.identity, owner) else {
            return Vec::new();
        };
        let store = &self.saved.store;
        // Without it, what another process wrote since is not found.
        drop(store.refresh());
        let mut found = store.list();
        found.retain(|it| it.namespace == namespace && it.id.kind == ObjectKind::Answer);
        found.sort_by_key(|it| it.last_used);
        let mut left = n_bytes_max as u64;
        let mut answers = Vec::new();
        for facts in found.iter().rev() {
            let Some(still_left) = left.checked_sub(facts.file_bytes) else { break };
            left = still_left;
            match read(store, facts.id) {
                Ok(answer) => answers.push(answer),
                Err(problem) => tracing::warn!(problem, "a saved answer cannot be used"),
            }
        }
        answers.reverse();
        answers
    }

    /// Saves an answer, unless too many wait already.
    pub fn save(&self, answer: NewAnswer) {
        self.send(AnswerTask::Save(answer));
    }

    /// Records that answers were of use. This keeps them longer than others.
    pub fn mark_used(&self, answers: UsedAnswers) {
        self.send(AnswerTask::MarkUsed(answers));
    }

    fn send(&self, task: AnswerTask) {
        if let Some(tasks) = &self.tasks {
            // Where the drive is that slow, the answer's text is tokenized instead.
            drop(tasks.try_send(task));
        }
    }
}

impl Drop for SavedAnswers {
    fn drop(&mut self) {
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            drop(thread.join());
        }
    }
}

impl UsedAnswers {
    fn ids(&self, namespace: PrefixNamespace) -> Vec<ObjectId> {
        let mut hasher = PlaceHasher::new(namespace);
        let mut at = 0;
        let mut place_at = |position: usize| {
            hasher.add(&numbers(&self.prompt[at..position]));
            at = position;
            hasher.key()
        };
        let id = |place: &Range<usize>| {
            let (start, end) = (place_at(place.start), place_at(place.end));
            ObjectId { end, start, kind: ObjectKind::Answer }
        };
        self.places.iter().map(id).collect()
    }
}

fn namespace(saved: &SavedConversations, identity: &[u8], owner: Owner) -> Option<PrefixNamespace> {
    (saved.owners)(owner).map(|owner| PrefixNamespace::new(identity, owner))
}

fn read(store: &Store, id: ObjectId) -> std::result::Result<SavedAnswer, String> {
    let mut reader = store.read_listed(id).map_err(|miss| miss.to_string())?;
    let header = reader.header();
    let tokens = header.tokens.iter().map(|token| TokenId(*token)).collect();
    let n_prompt_tokens = usize::try_from(header.first).unwrap_or(usize::MAX);
    let mut content = Vec::new();
    let bounded = reader.by_ref().take(CONTENT_BYTES_MAX as u64).read_to_end(&mut content);
    bounded.map_err(|error| error.to_string())?;
    Ok(SavedAnswer { n_prompt_tokens, prompt_hash: id.start.number(), tokens, content })
}

fn run(saved: &SavedConversations, identity: &[u8], tasks: &Receiver<AnswerTask>) {
    let mut has_warned = false;
    for task in tasks {
        match task {
            AnswerTask::MarkUsed(used) => {
                if let Some(namespace) = namespace(saved, identity, used.owner) {
                    saved.store.mark_all_used(&used.ids(namespace));
                }
            }
            AnswerTask::Save(answer) => {
                if let Err(problem) = write(saved, identity, &answer)
                    && !std::mem::replace(&mut has_warned, true)
                {
                    tracing::warn!(problem, "an answer was not saved; this is reported once");
                }
            }
        }
    }
}

fn write(
    saved: &SavedConversations,
    identity: &[u8],
    answer: &NewAnswer,
) -> std::result::Result<(), String> {
    let NewAnswer { owner, prompt, tokens, content } = answer;
    let Some(namespace) = namespace(saved, identity, *owner) else { return Ok(()) };
    if tokens.is_empty() || content.len() > CONTENT_BYTES_MAX {
        return Ok(());
    }
    let begun = saved.store.begin(&NewObject {
        namespace,
        kind: ObjectKind::Answer,
        tokens: &numbers(&[&prompt[..], tokens].concat()),
        first: prompt.len(),
        payload_bytes: content.len() as u64,
        saved_ms: tokens.len() as u64 / TOKENS_PER_MS + 1,
    });
    let mut writer = match begun {
        Ok(writer) => writer,
        Err(WriteRefusal::AlreadyThere | WriteRefusal::NotTheWriter) => return Ok(()),
        Err(refusal) => return Err(refusal.to_string()),
    };
    writer.write_all(content).map_err(|error| error.to_string())?;
    writer.commit().map(drop).map_err(|refusal| refusal.to_string())
}
