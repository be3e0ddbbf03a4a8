//! The description of a download, printed before it starts.

use std::ops::ControlFlow;

use moeflux::ByteCount;
use moeflux_hub::{Hub, Presence, PullProgress, Remote};
use moeflux_io::{OneLine, free_disk_bytes};

use crate::commands::plan;
use crate::failure::CommandResult;
use crate::model::hub::described;
use crate::output::fold::folded;
use crate::system::volume;

/// Digits that distinguish a commit from others.
const N_COMMIT_DIGITS: usize = 12;

/// A download before it starts.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) presence: Presence,
    /// A description of the model, or why it cannot be run.
    pub(crate) model: Result<String, String>,
    /// The expected speed on this machine.
    pub(crate) expected: Option<String>,
    place: String,
    pub(crate) free_bytes: Option<u64>,
}

impl Offer {
    /// Checks what is here already. `watch` follows that, and may end it.
    ///
    /// # Errors
    ///
    /// The hub's refusal, or an unreadable cache.
    pub(crate) fn new(
        hub: &Hub,
        remote: &Remote,
        piece_bytes: u64,
        watch: &mut dyn FnMut(PullProgress) -> ControlFlow<()>,
    ) -> CommandResult<Self> {
        let presence = hub.presence(remote, piece_bytes, watch)?;
        let config = hub.config(remote)?;
        let root = hub.cache().root();
        let model = match config.as_deref().map(described) {
            None => Err("has no config.json".to_owned()),
            Some(Ok(text)) => Ok(text),
            Some(Err(error)) => Err(format!("moeflux cannot run it: {error}")),
        };
        let existing = root.ancestors().find(|it| it.exists());
        let drive = existing.map(volume::key);
        Ok(Self {
            presence,
            model,
            expected: config.and_then(|it| plan::expectation(it, drive.as_deref())),
            place: root.display().to_string(),
            free_bytes: free_disk_bytes(root),
        })
    }

    /// Returns the bytes to be fetched.
    pub(crate) fn missing_bytes(&self) -> u64 {
        self.presence.n_bytes - self.presence.here_bytes
    }

    /// Returns whether moeflux can run the model.
    pub(super) fn runs(&self) -> bool {
        self.model.is_ok()
    }

    /// Returns the number of wanted files.
    pub(crate) fn n_files(&self) -> usize {
        self.presence.n_files
    }

    /// Returns the description, line by line.
    pub(super) fn lines(&self, remote: &Remote) -> Vec<String> {
        let Presence { n_files, n_bytes, n_files_here, here_bytes, .. } = self.presence;
        let wanted = remote.model();
        let commit = &remote.commit()[..N_COMMIT_DIGITS];
        let row = |label: &str, text: &str| folded(&format!("  {label:<10}"), text);
        let size = ByteCount(n_bytes).rounded();
        let here = match here_bytes {
            0 => String::new(),
            _ if here_bytes == n_bytes => "; all of it is here".to_owned(),
            _ => format!("; {} of it are here", ByteCount(here_bytes).rounded()),
        };
        let left =
            if n_files_here == 0 { String::new() } else { format!(" ({n_files_here} here)") };
        let free = self
            .free_bytes
            .map_or(String::new(), |it| format!("{} free in ", ByteCount(it).rounded()));
        let mut lines = vec![format!("{} at {} ({commit})", wanted.id, wanted.revision())];
        lines.extend(row("model", self.model.as_ref().unwrap_or_else(|problem| problem)));
        lines.extend(row("files", &format!("{n_files}{left}, {size}{here}")));
        lines.extend(damaged(&self.presence.damaged).iter().flat_map(|it| row("damaged", it)));
        lines.extend(self.expected.iter().flat_map(|it| row("expected", it)));
        lines.extend(row("drive", &format!("{free}{}", self.place)));
        lines
    }
}

/// Lists the files whose contents differ from the hub's hashes.
fn damaged(paths: &[String]) -> Option<String> {
    let first = OneLine::name(paths.first()?);
    Some(match paths.len() - 1 {
        0 => format!("{first}: does not match the hub's hash and will be fetched again"),
        n_more => format!(
            "{first} and {n_more} more: do not match the hub's hashes and will be fetched again"
        ),
    })
}
