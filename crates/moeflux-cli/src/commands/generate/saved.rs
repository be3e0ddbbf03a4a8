//! A turn of `generate --chat --cache-dir`: continues what was saved, and is saved.
//!
//! **Invariant:** the answer is the same as without the folder.

use std::ops::ControlFlow;
use std::time::Duration;

use moeflux::{Engine, Result, Session, TokenId};
use moeflux_chat::PreparedPrompt;
use moeflux_schedule::{Owner, SavedConversations, SavedPrompt, SessionSaver};

use crate::failure::{CommandFailure, CommandResult};
use crate::options::cache::{CacheArgs, CacheUse, OpenedCache, name_model};
use crate::output::print;
use crate::output::progress::Bar;
use crate::system::interrupt::Interrupt;

/// The command ends at most this long after the answer.
const SAVE_MAX: Duration = Duration::from_secs(10);

/// Opens the folder of `--cache-dir`, if it is given.
pub(super) fn open_cache(
    args: &CacheArgs,
    is_chat: bool,
) -> CommandResult<Option<SavedConversations>> {
    if args.names_folder() && !is_chat {
        let problem = "--cache-dir: only conversations are saved: it needs --chat";
        return Err(CommandFailure::Usage(problem.to_owned()));
    }
    let used = CacheUse { owner_names: &[], off: Some("this command needs --cache-dir for that") };
    match args.open(&used)? {
        OpenedCache::Open(saved, _) => Ok(Some(saved)),
        OpenedCache::Refused(line) => {
            print::stderr_line(&format!("note: {line}"));
            Ok(None)
        }
        OpenedCache::Off => Ok(None),
    }
}

/// The turn of one run of the command.
pub(super) struct SavedTurn<'e> {
    saver: SessionSaver<'e>,
    prompt: SavedPrompt<'e>,
    n_loaded: usize,
}

impl<'e> SavedTurn<'e> {
    pub(super) fn new(
        (engine, name): (&'e Engine, &str),
        saved: SavedConversations,
        (tokens, prepared): (&'e [TokenId], &'e PreparedPrompt),
    ) -> Result<Self> {
        name_model(Some(&saved), engine, name);
        let saver = SessionSaver::new(engine, saved)?;
        let split_points = &prepared.split_points;
        let prompt = SavedPrompt { owner: Owner::default(), tokens, split_points };
        Ok(Self { saver, prompt, n_loaded: 0 })
    }

    /// Gives the session the first tokens of the prompt.
    pub(super) fn begin(&mut self, session: Session, interrupt: &Interrupt) -> Result<Session> {
        let bar = Bar::tokens("reading", self.prompt.tokens.len());
        let go_on = &mut |n_read: usize| {
            bar.set(n_read as u64);
            if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let (session, n_loaded) = self.saver.begin(self.prompt, session, go_on)?;
        self.n_loaded = n_loaded;
        Ok(session)
    }

    /// Returns the number of tokens that were loaded.
    pub(super) fn n_loaded(&self) -> usize {
        self.n_loaded
    }

    /// Saves the session. `read` is how long the prompt took.
    pub(super) fn save(mut self, session: &mut Session, read: Option<Duration>) {
        if let Some(read) = read {
            self.saver.add_prompt(read, self.prompt.tokens.len() - self.n_loaded);
        }
        self.saver.save(self.prompt, session, SAVE_MAX);
    }
}
