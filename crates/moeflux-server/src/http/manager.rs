//! The interface to a program that lets clients list, download, load and remove models.
//!
//! The server decides which clients may; the program implements [`ModelManager`] and does the work.
//! **Invariant:** clients name a model by an id of the catalogue, or by its name at the configured
//! hub. Ids, never paths, are passed on to clients.

use std::fmt;
use std::time::Duration;

use serde_json::{Value as Json, json};

/// The result of a request to a manager.
pub type ManageResult<T> = Result<T, ManageRefusal>;

/// Manages the models of a server. One task runs at a time.
///
/// All methods but [`ModelManager::task`] may read files or wait for the hub: the server calls them
/// on a thread that may wait.
pub trait ModelManager: fmt::Debug + Send + Sync {
    /// Lists the models, in the order in which they are to be shown.
    ///
    /// # Errors
    ///
    /// The reason for which there is no list.
    fn catalogue(&self) -> ManageResult<ModelCatalogue>;

    /// Describes a download.
    ///
    /// # Errors
    ///
    /// The hub's refusal, or an unknown name.
    fn offer(&self, id: &str) -> ManageResult<ModelOffer>;

    /// Returns the running task, or the last one. Does not wait.
    fn task(&self) -> Option<TaskStatus>;

    /// Starts to download a model of which `n_bytes` are missing, as its offer said.
    ///
    /// # Errors
    ///
    /// The reason for which the task does not begin.
    fn pull(&self, id: &str, n_bytes: u64) -> ManageResult<TaskStatus>;

    /// Starts to replace the served model.
    ///
    /// # Errors
    ///
    /// The reason for which the task does not begin.
    fn load(&self, id: &str) -> ManageResult<TaskStatus>;

    /// Starts to remove a downloaded model from the drive.
    ///
    /// # Errors
    ///
    /// The reason for which the task does not begin.
    fn remove(&self, id: &str) -> ManageResult<TaskStatus>;

    /// Tells the running task to end.
    ///
    /// # Errors
    ///
    /// [`RefusalReason::Idle`] if no task runs.
    fn cancel(&self) -> ManageResult<TaskStatus>;
}

/// A manager's refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManageRefusal {
    /// The kind of reason.
    pub reason: RefusalReason,
    /// One line for people to read.
    pub message: String,
}

/// The kind of a [`ManageRefusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalReason {
    /// Another task runs.
    Busy,
    /// No task runs.
    Idle,
    /// The size of the download differs from the size that the client agreed to.
    Changed,
    /// The drive has too little free space.
    NoSpace,
    /// No model has this id.
    UnknownModel,
    /// Anything else that the message says.
    Invalid,
}

impl RefusalReason {
    /// Returns the code in responses.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Idle => "idle",
            Self::Changed => "changed",
            Self::NoSpace => "no_space",
            Self::UnknownModel => "unknown_model",
            Self::Invalid => "invalid",
        }
    }
}

/// The models that a server can be asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelCatalogue {
    /// The host of the hub that models come from; `None` if there is none.
    pub hub: Option<String>,
    /// Free bytes of the drive that downloads go to.
    pub free_disk_bytes: Option<u64>,
    /// Memory that a model may use.
    pub memory_bytes: Option<u64>,
    /// The id of the served model.
    pub current: String,
    /// The models, in the order in which they are to be shown.
    pub models: Vec<CatalogueModel>,
}

/// A model of a catalogue.
#[derive(Clone, Debug, PartialEq)]
pub struct CatalogueModel {
    /// Identifies it in requests.
    pub id: String,
    /// Its name, for people.
    pub name: String,
    /// Its size as its makers write it, such as `30B-A3B`.
    pub size: Option<String>,
    /// Where its files are.
    pub place: ModelPlace,
    /// Its name at the hub.
    pub repository: Option<String>,
    /// How its weights are stored.
    pub stored: Option<String>,
    /// The approximate size of its files.
    pub download_bytes: Option<u64>,
    /// The bytes of it that are on this machine.
    pub here_bytes: u64,
    /// What to expect of it on this machine.
    pub plan: Option<MachineFit>,
    /// Why it cannot be run.
    pub problem: Option<String>,
}

/// Where the files of a model are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPlace {
    /// In the hub's cache.
    Cache,
    /// In a folder of the user's, or in the program itself: it is never removed.
    Folder,
    /// Partly in the hub's cache.
    Partial,
    /// At the hub.
    Hub,
}

/// What to expect of a model on a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum MachineFit {
    /// It needs more memory than there is.
    TooLarge {
        /// The memory that it needs.
        least_bytes: u64,
    },
    /// It runs. Pairs are a low and a high estimate.
    Runs {
        /// The share of its experts, or of its layers without experts, that have room in memory.
        in_memory: f64,
        /// Whether it has no experts.
        is_dense: bool,
        /// Bytes that are read from the drive for a token of an answer.
        drive_bytes_per_token: (f64, f64),
        /// Tokens per second of an answer.
        answer: (f64, f64),
        /// Tokens per second of a prompt.
        prompt: (f64, f64),
        /// What limits answers.
        bound: &'static str,
    },
}

/// A download before it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelOffer {
    /// Identifies the model in requests.
    pub id: String,
    /// Its name, for people.
    pub name: String,
    /// Number of its files.
    pub n_files: usize,
    /// Their bytes.
    pub n_bytes: u64,
    /// The bytes among them that are not here.
    pub missing_bytes: u64,
    /// Free bytes of the drive.
    pub free_bytes: Option<u64>,
    /// Whether the missing files fit on the drive.
    pub fits_drive: bool,
    /// What kind of model it is.
    pub described: Option<String>,
    /// Its expected speed on this machine.
    pub expected: Option<String>,
    /// Why it cannot be run or downloaded.
    pub problem: Option<String>,
}

/// A task, which runs or has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskStatus {
    /// Its number, which increases from task to task.
    pub id: u64,
    /// The kind of work.
    pub kind: TaskKind,
    /// The id of its model.
    pub model: String,
    /// The name of its model.
    pub name: String,
    /// Whether it runs, or how it ended.
    pub state: TaskState,
    /// The part of it that runs, in one word.
    pub phase: &'static str,
    /// Bytes done and in total, in parts that have them.
    pub bytes: Option<(u64, u64)>,
    /// The rate of the last seconds.
    pub bytes_per_s: Option<f64>,
    /// Time since it began, until it ended.
    pub time: Duration,
    /// Answers of the previous model that have not ended, while the task waits for them.
    pub n_answers: Option<usize>,
    /// How it ended, in one line.
    pub message: Option<String>,
}

/// The work of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskKind {
    /// Downloads a model.
    Pull,
    /// Replaces the served model.
    Load,
    /// Removes a model from the drive.
    Remove,
}

/// The state of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It runs.
    Running,
    /// It has succeeded.
    Done,
    /// It has failed.
    Failed,
    /// A client cancelled it.
    Cancelled,
}

impl ModelCatalogue {
    /// Returns the response. `refusal` says why the client may not manage models.
    pub(crate) fn json(&self, refusal: Option<&str>) -> Json {
        let may_manage = refusal.is_none();
        let model = |model: &CatalogueModel| model.json(may_manage && model.id != self.current);
        json!({
            "manage": {"allowed": may_manage, "reason": refusal},
            "hub": self.hub,
            "free_disk_bytes": self.free_disk_bytes,
            "memory_bytes": self.memory_bytes,
            "current": self.current,
            "models": self.models.iter().map(model).collect::<Vec<_>>(),
        })
    }
}

impl CatalogueModel {
    fn json(&self, may_be_managed: bool) -> Json {
        let is_here = matches!(self.place, ModelPlace::Cache | ModelPlace::Folder);
        let fits = matches!(self.plan, None | Some(MachineFit::Runs { .. }));
        let runs = self.problem.is_none();
        let possible = [
            ("pull", !is_here && runs && self.repository.is_some()),
            ("load", is_here && runs && fits),
            ("remove", matches!(self.place, ModelPlace::Cache | ModelPlace::Partial)),
        ];
        let possible = possible.iter().filter(|(_, is)| *is && may_be_managed);
        json!({
            "id": self.id,
            "name": self.name,
            "size": self.size,
            "place": match self.place {
                ModelPlace::Cache | ModelPlace::Folder => "here",
                ModelPlace::Partial => "partial",
                ModelPlace::Hub => "hub",
            },
            "repository": self.repository,
            "stored": self.stored,
            "download_bytes": self.download_bytes,
            "here_bytes": self.here_bytes,
            "plan": self.plan.as_ref().map(MachineFit::json),
            "problem": self.problem,
            "can": possible.map(|(name, _)| *name).collect::<Vec<_>>(),
        })
    }
}

impl MachineFit {
    fn json(&self) -> Json {
        match self {
            Self::TooLarge { least_bytes } => json!({"fits": false, "least_bytes": least_bytes}),
            Self::Runs { in_memory, is_dense, drive_bytes_per_token, answer, prompt, bound } => {
                json!({
                    "fits": true,
                    "least_bytes": null,
                    "in_memory": in_memory,
                    "is_dense": is_dense,
                    "drive_bytes_per_token": drive_bytes_per_token,
                    "answer_tokens_per_s": answer,
                    "prompt_tokens_per_s": prompt,
                    "bound": bound,
                })
            }
        }
    }
}

impl ModelOffer {
    pub(crate) fn json(&self) -> Json {
        json!({
            "model": self.id,
            "name": self.name,
            "n_files": self.n_files,
            "bytes": self.n_bytes,
            "missing_bytes": self.missing_bytes,
            "free_bytes": self.free_bytes,
            "fits_drive": self.fits_drive,
            "runs": self.problem.is_none(),
            "described": self.described,
            "expected": self.expected,
            "problem": self.problem,
        })
    }
}

impl TaskStatus {
    pub(crate) fn json(&self) -> Json {
        json!({
            "id": self.id,
            "kind": match self.kind {
                TaskKind::Pull => "pull",
                TaskKind::Load => "load",
                TaskKind::Remove => "remove",
            },
            "model": self.model,
            "name": self.name,
            "state": match self.state {
                TaskState::Running => "running",
                TaskState::Done => "done",
                TaskState::Failed => "failed",
                TaskState::Cancelled => "cancelled",
            },
            "phase": self.phase,
            "done_bytes": self.bytes.map(|(n_done, _)| n_done),
            "total_bytes": self.bytes.map(|(_, n_total)| n_total),
            "bytes_per_s": self.bytes_per_s,
            "seconds": self.time.as_secs_f64(),
            "n_answers": self.n_answers,
            "message": self.message,
        })
    }
}
