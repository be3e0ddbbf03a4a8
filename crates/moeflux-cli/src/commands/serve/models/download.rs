//! Downloads that clients ask for: what one would fetch, and the download itself.
//!
//! **Invariant:** only the configured hub is asked, by the name of a repository. The received part
//! of a cancelled download is kept.

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use moeflux::ByteCount;
use moeflux_hub::{
    FileSelection, Hub, ModelRef, PIECE_BYTES, PullProgress, Settings, StopFlag, Trust,
};
use moeflux_server::http::{ManageRefusal, ManageResult, ModelOffer, RefusalReason};

use super::tasks::{RunningTask, TaskEnd};
use crate::commands::pull::offer::Offer;
use crate::commands::pull::{CONNECTIONS, check_choice};
use crate::failure::{CommandFailure, CommandResult};
use crate::model::hub;
use crate::system::disk;

/// Downloads from one hub.
#[derive(Debug)]
pub(super) struct Downloads {
    settings: Option<Settings>,
    /// The last offer: a client agrees to its size.
    offered: Mutex<Option<ModelOffer>>,
    /// The last download that began.
    begun: Mutex<Option<ModelRef>>,
}

impl Downloads {
    pub(super) fn new(settings: Option<Settings>) -> Self {
        Self { settings, offered: Mutex::default(), begun: Mutex::default() }
    }

    /// Returns the last download that began.
    pub(super) fn begun(&self) -> Option<ModelRef> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Describes a download.
    pub(super) fn offer(&self, (id, name): (&str, &str)) -> ManageResult<ModelOffer> {
        let wanted = wanted(id)?;
        let hub = self.hub(StopFlag::default())?;
        let offer = offer_of(&hub, (&wanted, name), &mut |_| ControlFlow::Continue(()))
            .map_err(|failure| invalid(failure.to_string()))?;
        *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = Some(offer.clone());
        Ok(offer)
    }

    /// Checks that a client has agreed to the size of a download that can begin.
    pub(super) fn check_agreed(&self, id: &str, n_bytes: u64) -> ManageResult<ModelRef> {
        let wanted = wanted(id)?;
        let offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = |reason, message: String| Err(ManageRefusal { reason, message });
        let Some(offer) = offered.as_ref().filter(|it| it.id == id) else {
            return refused(RefusalReason::Changed, format!("ask for an offer of {id} first"));
        };
        if let Some(problem) = &offer.problem {
            return refused(RefusalReason::Invalid, problem.clone());
        }
        if offer.missing_bytes != n_bytes {
            let size = ByteCount(offer.missing_bytes);
            return refused(RefusalReason::Changed, format!("{id} needs {size}: agree to that"));
        }
        if let (false, Some(free_bytes)) = (offer.fits_drive, offer.free_bytes) {
            let (size, free) = (ByteCount(offer.missing_bytes), ByteCount(free_bytes));
            let message = format!("{id} needs {size}, and {free} are free: free some space");
            return refused(RefusalReason::NoSpace, message);
        }
        Ok(wanted)
    }

    /// Downloads a model.
    pub(super) fn pull(&self, wanted: &ModelRef, n_bytes: u64, task: &RunningTask) -> TaskEnd {
        *self.begun.lock().unwrap_or_else(PoisonError::into_inner) = Some(wanted.clone());
        match self.pulled(wanted, n_bytes, task) {
            Ok(()) => TaskEnd::Done(format!("{wanted} is on this machine")),
            Err(CommandFailure::Interrupted(_)) => TaskEnd::Cancelled(
                "what has arrived is kept; a download continues there".to_owned(),
            ),
            Err(failure) => TaskEnd::Failed(failure.to_string()),
        }
    }

    fn pulled(&self, wanted: &ModelRef, n_bytes: u64, task: &RunningTask) -> CommandResult {
        let stop = StopFlag::default();
        let hook = stop.clone();
        task.on_cancel(move || hook.set());
        task.set_phase("asking");
        let hub = self.hub(stop).map_err(|refusal| CommandFailure::Usage(refusal.message))?;
        let remote = hub.resolve(wanted, &FileSelection::from(wanted))?;
        task.set_phase("checking");
        let mut watch = |progress: PullProgress| {
            task.set_bytes(progress.done_bytes, progress.total_bytes);
            ControlFlow::Continue(())
        };
        let offer = Offer::new(&hub, &remote, PIECE_BYTES, &mut watch)?;
        let missing_bytes = offer.missing_bytes();
        if missing_bytes > n_bytes {
            let size = ByteCount(missing_bytes);
            let problem = format!("{wanted} has changed, and needs {size}: ask for it again");
            return Err(CommandFailure::Usage(problem));
        }
        disk::check_room(hub.cache().root(), offer.n_files(), missing_bytes)?;
        task.set_phase("downloading");
        hub.pull(&remote, CONNECTIONS, PIECE_BYTES, &mut watch)?;
        Ok(())
    }

    fn hub(&self, stop: StopFlag) -> ManageResult<Hub> {
        let settings = self.settings.clone();
        let settings =
            settings.ok_or_else(|| invalid("there is no cache for models".to_owned()))?;
        Ok(Hub::new(settings, Trust::Marks, stop))
    }
}

/// Parses the name of a repository. Paths and addresses are none.
pub(super) fn wanted(id: &str) -> ManageResult<ModelRef> {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "._:/@-".contains(it);
    let is_name = id.chars().all(is_plain) && id.matches('/').count() == 1 && !id.contains("..");
    match hub::wanted_of_owner(id) {
        Ok(wanted) if is_name && id.starts_with(|it: char| it.is_ascii_alphanumeric()) => {
            Ok(wanted)
        }
        _ => Err(ManageRefusal {
            reason: RefusalReason::UnknownModel,
            message: "there is no model of this name: write OWNER/NAME, or OWNER/NAME:QUANT for a \
                      kind of its GGUF files"
                .to_owned(),
        }),
    }
}

fn offer_of(
    hub: &Hub,
    (wanted, name): (&ModelRef, &str),
    watch: &mut dyn FnMut(PullProgress) -> ControlFlow<()>,
) -> CommandResult<ModelOffer> {
    let choice = FileSelection::from(wanted);
    let remote = hub.resolve(wanted, &choice)?;
    let mut offered = ModelOffer {
        id: wanted.to_string(),
        name: name.to_owned(),
        n_files: 0,
        n_bytes: 0,
        missing_bytes: 0,
        free_bytes: None,
        fits_drive: true,
        described: None,
        expected: None,
        problem: None,
    };
    if let Err(failure) = check_choice(&remote, &choice) {
        offered.problem = Some(failure.to_string());
        return Ok(offered);
    }
    let offer = Offer::new(hub, &remote, PIECE_BYTES, watch)?;
    let missing_bytes = offer.missing_bytes();
    offered.n_files = offer.n_files();
    offered.n_bytes = offer.presence.n_bytes;
    offered.missing_bytes = missing_bytes;
    offered.free_bytes = offer.free_bytes;
    offered.fits_drive =
        disk::check_room(hub.cache().root(), offer.n_files(), missing_bytes).is_ok();
    offered.expected = offer.expected;
    match offer.model {
        Ok(described) => offered.described = Some(described),
        // GGUF files describe themselves, once they are here.
        Err(_) if wanted.quant().is_some() => {}
        Err(problem) => offered.problem = Some(problem),
    }
    Ok(offered)
}

fn invalid(message: String) -> ManageRefusal {
    ManageRefusal { reason: RefusalReason::Invalid, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_repositories_are_asked_for() {
        for id in ["a/b", "Qwen/Qwen3-30B-A3B", "a/b:Q4_K_M", "a/b@v1", "a/b:Q8_0@main"] {
            assert_eq!(wanted(id).unwrap().to_string(), id);
        }
        for id in [
            "",
            "a",
            "/a/b",
            "./a",
            "../a",
            "a/..",
            "a/b/c",
            "a\\b",
            "https://x/a/b",
            "hf.co/a/b/c",
            "a/b c",
            "~/a",
            "a/b?x",
            "a/b#x",
            "C:/a",
            "file:/a",
            "a/b\n",
        ] {
            assert_eq!(wanted(id).unwrap_err().reason, RefusalReason::UnknownModel, "{id}");
        }
    }
}
