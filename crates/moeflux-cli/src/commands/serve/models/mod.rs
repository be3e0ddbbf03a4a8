//! The models of a server, as the page sees them: lists, downloads, loads and removes them.
//!
//! **Invariant:** a model is named by an id of the catalogue, or by its name at the configured hub;
//! never by a path.

mod tasks;
mod catalogue;
mod download;
mod replace;

use std::path::PathBuf;
use std::sync::Arc;

use moeflux_hub::{Cache, ModelRef, RepoId};
use moeflux_server::http::{
    ManageRefusal, ManageResult, ModelCatalogue, ModelManager, ModelOffer, Models, RefusalReason,
    TaskKind, TaskStatus,
};

use crate::commands::serve::start::ModelStarter;
use crate::failure::CommandResult;

pub(super) use catalogue::Catalogue;
use catalogue::FoundModel;
use download::Downloads;
pub(super) use replace::ModelInUse;
use replace::Serving;
use tasks::{TaskEnd, Tasks};

/// Manages the models of a server.
#[derive(Debug)]
pub(super) struct Manager {
    /// The path of the model that the server began with.
    first: PathBuf,
    catalogue: Arc<Catalogue>,
    downloads: Arc<Downloads>,
    serving: Arc<Serving>,
    tasks: Arc<Tasks>,
}

impl Manager {
    pub(super) fn new(
        catalogue: Catalogue,
        (starter, models): (ModelStarter, Models),
        first: ModelInUse,
    ) -> Self {
        Self {
            first: first.path.clone(),
            downloads: Arc::new(Downloads::new(catalogue.settings().cloned())),
            catalogue: Arc::new(catalogue),
            serving: Arc::new(Serving::new(starter, models, first)),
            tasks: Arc::default(),
        }
    }

    /// Ends the running task, and waits for it.
    pub(super) fn end(&self) {
        self.tasks.end();
    }

    fn models(&self) -> Vec<FoundModel> {
        let current = self.serving.current();
        let used = [current.path.as_path(), &self.first];
        self.catalogue.models(used, self.downloads.begun().as_ref())
    }

    fn found(&self, id: &str) -> ManageResult<FoundModel> {
        let mut models = self.models();
        let found = models.iter().position(|it| it.listed.id == id).or_else(|| {
            // A download may have named the same files in another way, such as `:q4_k_m`.
            let path = self.cached(id)?;
            models.iter().position(|it| it.is_at(&path))
        });
        let unknown = || refusal(RefusalReason::UnknownModel, "there is no model of this id");
        found.map(|at| models.swap_remove(at)).ok_or_else(unknown)
    }

    /// Returns where the hub's cache has a model of this name.
    fn cached(&self, id: &str) -> Option<PathBuf> {
        let settings = self.catalogue.settings()?;
        Cache::new(&settings.cache).find(&download::wanted(id).ok()?).ok()
    }

    /// Returns the name of a model that may be at the hub only.
    fn name(&self, id: &str) -> String {
        self.found(id).map_or_else(|_| id.to_owned(), |it| it.listed.name)
    }
}

impl ModelManager for Manager {
    fn catalogue(&self) -> ManageResult<ModelCatalogue> {
        let models = self.models();
        let current = self.serving.current();
        let served = models.iter().find(|it| it.is_at(&current.path));
        let hub = self.catalogue.settings().map(|it| it.endpoint.as_str());
        let host = |address: &str| {
            let host = address.split_once("://").map_or(address, |(_, host)| host);
            host.rsplit('@').next().unwrap_or_default().to_owned()
        };
        Ok(ModelCatalogue {
            hub: hub.map(host),
            free_disk_bytes: self.catalogue.free_disk_bytes(),
            memory_bytes: self.catalogue.memory_bytes(),
            current: served.map_or_else(String::new, |it| it.listed.id.clone()),
            models: models.into_iter().map(|it| it.listed).collect(),
        })
    }

    fn offer(&self, id: &str) -> ManageResult<ModelOffer> {
        download::wanted(id)?;
        self.downloads.offer((id, &self.name(id)))
    }

    fn task(&self) -> Option<TaskStatus> {
        self.tasks.last()
    }

    fn pull(&self, id: &str, n_bytes: u64) -> ManageResult<TaskStatus> {
        let wanted = self.downloads.check_agreed(id, n_bytes)?;
        let downloads = Arc::clone(&self.downloads);
        let work = move |task: &Arc<_>| downloads.pull(&wanted, n_bytes, task);
        self.tasks.begin(TaskKind::Pull, (id, &self.name(id)), work)
    }

    fn load(&self, id: &str) -> ManageResult<TaskStatus> {
        let found = self.found(id)?;
        let name = found.listed.name;
        if let Some(problem) = &found.listed.problem {
            return Err(refusal(RefusalReason::Invalid, problem));
        }
        let Some(path) = found.path else {
            let problem = format!("{name} is not on this machine: download it first");
            return Err(refusal(RefusalReason::Invalid, &problem));
        };
        if self.serving.current().path == path {
            return Err(refusal(RefusalReason::Invalid, "this model is loaded already"));
        }
        let (serving, catalogue) = (Arc::clone(&self.serving), Arc::clone(&self.catalogue));
        let shown = name.clone();
        let work = move |task: &Arc<_>| serving.replace((&path, &shown), &catalogue, task);
        self.tasks.begin(TaskKind::Load, (id, &name), work)
    }

    fn remove(&self, id: &str) -> ManageResult<TaskStatus> {
        let listed = self.found(id)?.listed;
        let wanted = listed.repository.and_then(|it| it.parse::<ModelRef>().ok());
        let (Some(wanted), Some(settings)) = (wanted, self.catalogue.settings()) else {
            let problem = "only models of the hub's cache can be removed here";
            return Err(refusal(RefusalReason::Invalid, problem));
        };
        let current = self.serving.current();
        if is_of(&wanted.id, &current) {
            return Err(refusal(
                RefusalReason::Invalid,
                "this model answers: load another one first",
            ));
        }
        let (cache, whole) = (Cache::new(&settings.cache), ModelRef::main(wanted.id));
        let name = listed.name.clone();
        let work = move |task: &Arc<tasks::RunningTask>| {
            task.set_phase("removing");
            match removed(&cache, &whole) {
                Ok(()) => TaskEnd::Done(format!("{name} was removed")),
                Err(failure) => TaskEnd::Failed(failure.to_string()),
            }
        };
        self.tasks.begin(TaskKind::Remove, (id, &listed.name), work)
    }

    fn cancel(&self) -> ManageResult<TaskStatus> {
        self.tasks.cancel()
    }
}

/// Whether the served model is one of this repository, of which all revisions would be removed.
fn is_of(id: &RepoId, current: &ModelInUse) -> bool {
    let path = dunce::canonicalize(&current.path).ok();
    let mut folders = current.path.ancestors().chain(path.iter().flat_map(|it| it.ancestors()));
    folders.any(|folder| RepoId::of_snapshot(folder).is_some_and(|of| of == *id))
}

fn removed(cache: &Cache, whole: &ModelRef) -> CommandResult {
    cache.removal(whole)?.run()?;
    Ok(())
}

fn refusal(reason: RefusalReason, message: &str) -> ManageRefusal {
    ManageRefusal { reason, message: message.to_owned() }
}
