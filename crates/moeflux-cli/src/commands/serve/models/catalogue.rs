//! The models that the page offers: those known by name, those in the hub's cache, and those in
//! folders that the command line names; each with a plan for this machine.
//!
//! **Invariant:** reads only headers, and searches no folder that was not named. The plans are for
//! the machine as it was before the server loaded its first model.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use moeflux::{Budget, ByteCount, Error, Model};
use moeflux_hub::{Cache, ModelRef, Quant, Repo, Settings, Snapshot, State};
use moeflux_io::free_disk_bytes;
use moeflux_server::http::{CatalogueModel, MachineFit, ModelPlace};

use crate::commands::plan::CONTEXT_DEFAULT;
use crate::commands::plan::list::RowForecast;
use crate::commands::plan::machine::{MachineOverrides, PlanMachine};
use crate::commands::plan::report::PlannedModel;
use crate::commands::serve::args::ServeArgs;
use crate::failure::CommandResult;
use crate::model::hub;
use crate::model::known::{KNOWN, KnownModel};
use crate::options::args::BackendName;
use crate::system::measurements::Measurements;
use crate::system::volume;

/// How deep folders are searched: publishers' names are folders, too.
const DEPTH_MAX: usize = 3;
/// Upper bound on the models of the folders: more are a mistake.
const N_FOUND_MAX: usize = 500;

/// The models that the page offers.
#[derive(Debug)]
pub(crate) struct Catalogue {
    folders: Vec<PathBuf>,
    settings: Option<Settings>,
    machine: PlanMachine,
    /// The headers of models that were read, by path, with the time of the last change.
    read: Mutex<BTreeMap<PathBuf, (Option<SystemTime>, ReadModel)>>,
}

/// A model of the catalogue.
#[derive(Clone, Debug)]
pub(super) struct FoundModel {
    /// Where it is, if it is complete.
    pub(super) path: Option<PathBuf>,
    pub(super) listed: CatalogueModel,
}

/// A summary of the headers of a model.
#[derive(Clone, Debug)]
struct ReadModel {
    stored: Option<String>,
    n_bytes: u64,
    plan: Result<MachineFit, String>,
}

impl Catalogue {
    /// Looks at the machine, which holds no model yet.
    pub(crate) fn new(args: &ServeArgs) -> CommandResult<Self> {
        let settings = hub::settings().ok();
        let budget_bytes = match args.model.memory {
            Budget::Bytes(n_bytes) => Some(n_bytes),
            Budget::Auto => None,
        };
        let gpu_bytes = match (args.model.backend()?, args.model.gpu_memory) {
            (BackendName::Cpu | BackendName::Reference, _) => Some(0),
            (_, Some(Budget::Bytes(n_bytes))) => Some(n_bytes),
            _ => None,
        };
        let overrides = MachineOverrides { budget_bytes, gpu_bytes, ..Default::default() };
        let place = settings.as_ref().and_then(|it| it.cache.ancestors().find(|it| it.exists()));
        let drive = place.map(volume::key);
        let machine = PlanMachine::here(&overrides, &Measurements::load(), drive.as_deref());
        let folders = args.models.clone();
        Ok(Self { folders, settings, machine, read: Mutex::default() })
    }

    /// Returns the settings of the hub, if there are any.
    pub(super) fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// Returns the memory that a model may use.
    pub(super) fn memory_bytes(&self) -> Option<u64> {
        self.machine.memory_bytes()
    }

    /// Returns the free bytes of the drive that downloads go to.
    pub(super) fn free_disk_bytes(&self) -> Option<u64> {
        free_disk_bytes(&self.settings.as_ref()?.cache)
    }

    /// Lists the models, the best first. `used` are the paths of the current one and of the first
    /// one, and `begun` a download that was not finished.
    pub(super) fn models(&self, used: [&Path; 2], begun: Option<&ModelRef>) -> Vec<FoundModel> {
        let mut models = self.cached(begun);
        for path in self.folders.iter().flat_map(|folder| models_below(folder)) {
            models.push(self.in_folder(&path));
        }
        for path in used {
            if !models.iter().any(|it| it.is_at(path)) {
                models.push(self.in_folder(path));
            }
        }
        for known in &KNOWN {
            let repository = known.repository().map(|it| it.to_string());
            match models
                .iter_mut()
                .find(|it| repository.is_some() && it.listed.repository == repository)
            {
                Some(found) => self.name_as(found, known),
                None => models.extend(self.at_hub(known)),
            }
        }
        models.sort_by(|one, other| rank(&one.listed).total_cmp(&rank(&other.listed)));
        models
    }

    /// Checks that a model fits this machine.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] with the memory that it needs.
    pub(super) fn check_fits(&self, model: &Model) -> CommandResult {
        let planned = PlannedModel::of_model(model.clone());
        match RowForecast::new(&planned, &self.machine, CONTEXT_DEFAULT as u64)? {
            RowForecast::Runs { .. } => Ok(()),
            RowForecast::TooLarge { least_bytes, of } => {
                let has = self.machine.memory_bytes().filter(|_| of == "memory");
                let has = has.map_or(String::new(), |it| {
                    format!(", and {} are there for it", ByteCount(it).rounded())
                });
                let needs = ByteCount(least_bytes).rounded();
                let problem = format!("{} needs at least {needs} of {of}{has}", planned.name);
                Err(Error::Input(problem).into())
            }
        }
    }

    fn cached(&self, begun: Option<&ModelRef>) -> Vec<FoundModel> {
        let cache = self.settings.as_ref().map(|it| Cache::new(&it.cache));
        let repos = cache.and_then(|cache| cache.repos().ok()).unwrap_or_default();
        repos.iter().flat_map(|repo| self.of_repo(repo, begun)).collect()
    }

    /// Lists the models of a repository: one, or one for each GGUF file.
    fn of_repo(&self, repo: &Repo, begun: Option<&ModelRef>) -> Vec<FoundModel> {
        let is_main = |it: &&Snapshot| it.refs.iter().any(|name| name == "main");
        let snapshot = repo.snapshots.iter().find(is_main).or(repo.snapshots.first());
        let id = match snapshot.filter(|it| !is_main(it)) {
            Some(snapshot) => format!("{}@{}", repo.id, snapshot.commit),
            None => repo.id.to_string(),
        };
        let mut models = match snapshot.map(|it| (it, &it.state)) {
            Some((snapshot, State::Whole)) => {
                vec![self.here(&id, (&snapshot.dir, &repo.id.to_string()))]
            }
            Some((snapshot, State::NoWeights)) if snapshot.has_gguf => {
                let files = models_below(&snapshot.dir);
                let kind =
                    |file: &Path| Quant::of_file(file.strip_prefix(&snapshot.dir).ok()?.to_str()?);
                let named = files.iter().filter_map(|file| Some((file, kind(file)?)));
                let found = named.map(|(file, kind)| {
                    let name = format!("{}:{kind}", repo.id);
                    self.here(&name, (file, &name))
                });
                found.collect()
            }
            _ => Vec::new(),
        };
        let is_incomplete = repo.incomplete_bytes > 0
            || matches!(snapshot.map(|it| &it.state), Some(State::Missing { .. }));
        if is_incomplete {
            let begun = begun.filter(|it| it.id == repo.id).map(ToString::to_string);
            let id = begun.unwrap_or(id);
            models.push(FoundModel {
                path: None,
                listed: CatalogueModel {
                    place: ModelPlace::Partial,
                    repository: Some(id.clone()),
                    here_bytes: repo.n_bytes,
                    ..unknown(&id, &id)
                },
            });
        }
        models
    }

    fn here(&self, id: &str, (path, repository): (&Path, &str)) -> FoundModel {
        let found = self.found(id, path, ModelPlace::Cache);
        let listed = CatalogueModel {
            name: repository.to_owned(),
            repository: Some(repository.to_owned()),
            ..found.listed
        };
        FoundModel { listed, ..found }
    }

    fn in_folder(&self, path: &Path) -> FoundModel {
        let mut hasher = DefaultHasher::new();
        canonical(path).hash(&mut hasher);
        self.found(&format!("local:{:016x}", hasher.finish()), path, ModelPlace::Folder)
    }

    fn found(&self, id: &str, path: &Path, place: ModelPlace) -> FoundModel {
        let ReadModel { stored, n_bytes, plan } = self.read(path);
        let (plan, problem) = match plan {
            Ok(plan) => (Some(plan), None),
            Err(problem) => (None, Some(problem)),
        };
        let listed = CatalogueModel {
            place,
            stored,
            download_bytes: Some(n_bytes),
            here_bytes: n_bytes,
            plan,
            problem,
            ..unknown(id, &hub::name_of(path))
        };
        FoundModel { path: Some(path.to_owned()), listed }
    }

    /// Reads a model's headers, unless that was done since it changed.
    fn read(&self, path: &Path) -> ReadModel {
        let changed = path.metadata().and_then(|it| it.modified()).ok();
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, known)) = read.get(path)
            && *at == changed
        {
            return known.clone();
        }
        let found = match Model::open(path) {
            Ok(model) => self.planned(model),
            Err(error) => ReadModel {
                stored: None,
                n_bytes: 0,
                plan: Err(format!("moeflux cannot run it: {}", without_path(&error, path))),
            },
        };
        read.insert(path.to_owned(), (changed, found.clone()));
        found
    }

    fn planned(&self, model: Model) -> ReadModel {
        let planned = PlannedModel::of_model(model);
        let forecast = RowForecast::new(&planned, &self.machine, CONTEXT_DEFAULT as u64);
        let plan = forecast.map(plan).map_err(|failure| failure.to_string());
        ReadModel { stored: planned.main_kind(), n_bytes: planned.weights_bytes, plan }
    }

    /// Gives a model of the cache the name under which it is known.
    fn name_as(&self, found: &mut FoundModel, known: &KnownModel) {
        let listed = &mut found.listed;
        known.name.clone_into(&mut listed.name);
        listed.size = size(known);
        if listed.place == ModelPlace::Partial
            && let Some(at_hub) = self.at_hub(known)
        {
            let CatalogueModel { plan, stored, download_bytes, .. } = at_hub.listed;
            (listed.plan, listed.stored, listed.download_bytes) = (plan, stored, download_bytes);
        }
    }

    /// Returns a model that is known by name.
    fn at_hub(&self, known: &KnownModel) -> Option<FoundModel> {
        let config = known.config().ok()?;
        let kind = config.kind(None, None).ok()?;
        let blueprint = config.blueprint(kind).ok()?;
        let planned = PlannedModel::new(known.name.to_owned(), blueprint, Some(kind));
        let forecast = RowForecast::new(&planned, &self.machine, CONTEXT_DEFAULT as u64).ok()?;
        let repository = known.repository().map(|it| it.to_string());
        let id = repository.clone().unwrap_or_else(|| known.name.to_owned());
        let listed = CatalogueModel {
            size: size(known),
            repository,
            stored: planned.stored(),
            download_bytes: Some(planned.weights_bytes),
            plan: Some(plan(forecast)),
            ..unknown(&id, known.name)
        };
        Some(FoundModel { path: None, listed })
    }
}

impl FoundModel {
    /// Whether it is at this path.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.path.as_deref().is_some_and(|it| canonical(it) == canonical(path))
    }
}

/// A model of which nothing is known but its name.
fn unknown(id: &str, name: &str) -> CatalogueModel {
    CatalogueModel {
        id: id.to_owned(),
        name: name.to_owned(),
        size: None,
        place: ModelPlace::Hub,
        repository: None,
        stored: None,
        download_bytes: None,
        here_bytes: 0,
        plan: None,
        problem: None,
    }
}

/// Returns a known model's size, if its name does not say it.
fn size(known: &KnownModel) -> Option<String> {
    (!known.name.contains(known.size)).then(|| known.size.to_owned())
}

fn plan(forecast: RowForecast) -> MachineFit {
    match forecast {
        RowForecast::TooLarge { least_bytes, .. } => MachineFit::TooLarge { least_bytes },
        RowForecast::Runs { share, is_dense, drive_bytes, answer, prompt, bound, .. } => {
            MachineFit::Runs {
                in_memory: share,
                is_dense,
                drive_bytes_per_token: drive_bytes,
                answer,
                prompt,
                bound,
            }
        }
    }
}

/// Orders models: first the ones that run, by speed; then the ones without a plan; then the ones
/// that need more memory, by size; and last the ones that moeflux cannot run.
fn rank(model: &CatalogueModel) -> f64 {
    const PART: f64 = 1e18;
    match (&model.problem, &model.plan) {
        (Some(_), _) => 3.0 * PART,
        (None, Some(MachineFit::TooLarge { least_bytes })) => {
            2.0 * PART + crate::model::needs::float(*least_bytes)
        }
        (None, None) => PART,
        (None, Some(MachineFit::Runs { answer: (low, _), .. })) => -low,
    }
}

/// Returns the text of an error about a model, with its name in place of its path: where the
/// folders of this machine are is nothing for clients.
pub(super) fn without_path(error: &impl ToString, path: &Path) -> String {
    let text = error.to_string();
    let known = [Some(path.to_owned()), dunce::canonicalize(path).ok()];
    let known = known.into_iter().flatten().map(|it| it.display().to_string());
    known.fold(text, |text, path_text| text.replace(&path_text, &hub::name_of(path)))
}

fn canonical(path: &Path) -> PathBuf {
    dunce::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Lists the models in a folder and below it: folders with a config and safetensors, and GGUF
/// files, of those in parts the first.
fn models_below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    search(folder, DEPTH_MAX, &mut found);
    found.sort();
    found.truncate(N_FOUND_MAX);
    found
}

fn search(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders = Vec::new();
    let mut has_weights = false;
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or(".");
        if name.starts_with('.') || found.len() > N_FOUND_MAX {
            continue;
        }
        if path.is_dir() {
            folders.push(path);
        } else if name.ends_with(".gguf") && is_first_part(name) {
            found.push(path);
        } else {
            has_weights |= name.ends_with(".safetensors");
        }
    }
    if has_weights && folder.join("config.json").is_file() {
        found.push(folder.to_owned());
    }
    if depth > 0 {
        folders.iter().for_each(|folder| search(folder, depth - 1, found));
    }
}

/// Whether a GGUF file is a model, or its first part; projectors of images are none.
fn is_first_part(name: &str) -> bool {
    let is_later = name
        .rsplit_once("-of-")
        .is_some_and(|(begun, _)| !begun.ends_with("-00001") && has_part_number(begun));
    !is_later && !name.contains("mmproj")
}

fn has_part_number(begun: &str) -> bool {
    let number = begun.rsplit('-').next().unwrap_or_default();
    number.len() == 5 && number.bytes().all(|it| it.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use moeflux_testing::temp_dir::TempDir;

    use super::*;

    #[test]
    fn folders_are_searched_for_models() {
        let dir = TempDir::new();
        let write = |path: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"").unwrap();
        };
        for path in [
            "a/config.json",
            "a/model.safetensors",
            "b/config.json",
            "c/x-Q4_K_M.gguf",
            "c/mmproj-x.gguf",
            "owner/name/y-00001-of-00002.gguf",
            "owner/name/y-00002-of-00002.gguf",
            ".hidden/z.gguf",
            "1/2/3/4/too-deep.gguf",
            "top.gguf",
        ] {
            write(path);
        }
        let found = models_below(dir.path());
        let below = |path: &PathBuf| path.strip_prefix(dir.path()).unwrap().to_owned();
        let found: Vec<PathBuf> = found.iter().map(below).collect();
        let expected = ["a", "c/x-Q4_K_M.gguf", "owner/name/y-00001-of-00002.gguf", "top.gguf"];
        assert_eq!(found, expected.map(PathBuf::from));
        assert!(models_below(&dir.path().join("nowhere")).is_empty());
    }

    #[test]
    fn what_runs_well_comes_first() {
        let runs = |low: f64| MachineFit::Runs {
            in_memory: 1.0,
            is_dense: false,
            drive_bytes_per_token: (0.0, 0.0),
            answer: (low, 2.0 * low),
            prompt: (1.0, 2.0),
            bound: "CPU",
        };
        let with = |plan| CatalogueModel { plan: Some(plan), ..unknown("", "") };
        let large = |least_bytes| with(MachineFit::TooLarge { least_bytes });
        let unsupported = CatalogueModel { problem: Some(String::new()), ..unknown("", "") };
        let sorted = [
            with(runs(30.0)),
            with(runs(2.0)),
            unknown("", ""),
            large(1 << 30),
            large(1 << 40),
            unsupported,
        ];
        assert!(sorted.iter().map(rank).is_sorted());
    }
}
