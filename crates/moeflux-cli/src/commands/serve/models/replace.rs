//! Replaces the served model by another one.
//!
//! **Invariant:** two models are never in memory together, and no request is answered by a model
//! that is being freed. If the new model cannot be loaded, the old one comes back.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use moeflux::{Error, Result};
use moeflux_schedule::{Service, State};
use moeflux_server::http::{Models, Served};

use super::catalogue::{Catalogue, without_path};
use super::tasks::{RunningTask, TaskEnd};
use crate::commands::serve::start::{LoadControl, ModelStarter};
use crate::failure::{CommandFailure, CommandResult};
use crate::system::clock;

/// Time between two looks at a service.
const LOOK: Duration = Duration::from_millis(50);
/// Time in which a service begins to load.
const BEGINS: Duration = Duration::from_secs(1);

/// The model that a server answers with.
#[derive(Debug)]
pub(super) struct Serving {
    starter: ModelStarter,
    models: Models,
    current: Mutex<Arc<ModelInUse>>,
}

/// A served model, with its path and the control of its loads.
#[derive(Debug)]
pub(crate) struct ModelInUse {
    pub(crate) served: Served,
    pub(crate) path: PathBuf,
    pub(crate) control: Arc<LoadControl>,
}

impl Serving {
    pub(super) fn new(starter: ModelStarter, models: Models, first: ModelInUse) -> Self {
        Self { starter, models, current: Mutex::new(Arc::new(first)) }
    }

    /// Returns the served model.
    pub(super) fn current(&self) -> Arc<ModelInUse> {
        Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Serves the model at a path in place of the current one.
    pub(super) fn replace(
        &self,
        (path, name): (&Path, &str),
        catalogue: &Catalogue,
        task: &Arc<RunningTask>,
    ) -> TaskEnd {
        match self.replaced(path, catalogue, task) {
            Ok(()) => TaskEnd::Done(format!("{name} is loaded")),
            Err(CommandFailure::Interrupted(_)) => {
                TaskEnd::Cancelled(format!("{name} was not loaded"))
            }
            Err(failure) => {
                let problem = without_path(&failure, path);
                let old = &self.current().served;
                TaskEnd::Failed(match old.service.state() {
                    State::Broken => {
                        let old = &old.model.names[0];
                        format!("{problem}; and {old} cannot be loaded again")
                    }
                    _ => problem,
                })
            }
        }
    }

    fn replaced(
        &self,
        path: &Path,
        catalogue: &Catalogue,
        task: &Arc<RunningTask>,
    ) -> CommandResult {
        task.set_phase("opening");
        let opened = self.starter.open(path)?;
        catalogue.check_fits(&opened.model)?;
        let control = self.starter.control();
        let cancelled = Arc::clone(&control);
        task.on_cancel(move || cancelled.cancel());
        if control.is_cancelled() {
            return Err(CommandFailure::interrupted());
        }
        let old = self.current();
        let (open_gate, gate) = channel();
        let freeing = Freeing {
            old: Arc::clone(&old),
            drain: self.starter.args.drain,
            control: Arc::clone(&control),
            task: Arc::clone(task),
        };
        let before = Box::new(move || {
            // The sender is dropped if the model is not served after all.
            gate.recv().map_err(|_| Error::Cancelled)?;
            freeing.run()
        });
        let path = opened.model.path().to_owned();
        let served = self.starter.start(opened, Arc::clone(&control), before)?;
        // From here on requests wait for the new model.
        self.models.serve(served.clone())?;
        old.served.service.pause();
        // The receiver is gone if the service could not begin.
        open_gate.send(()).ok();
        let service = &served.service;
        let is_loading = |state| state == State::Loading;
        wait_while(service, is_loading, &mut || report(&control, task));
        if let Err(error) = service.wait_until_open() {
            self.bring_back(&old, task)?;
            return Err(error.into());
        }
        let new = Arc::new(ModelInUse { served, path, control });
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Serves the old model again, and loads it if it was freed.
    fn bring_back(&self, old: &ModelInUse, task: &RunningTask) -> Result<()> {
        task.set_phase("restoring");
        self.models.serve(old.served.clone())?;
        old.control.reset();
        let service = &old.served.service;
        service.resume();
        if service.state() == State::Ready || old.control.is_cancelled() {
            return Ok(());
        }
        service.load();
        // Before the service begins, its state is that of the load that was ended.
        let begins = clock::instant() + BEGINS;
        let waits = |state| match state {
            State::Loading | State::Unloaded => true,
            State::Broken => clock::instant() < begins,
            _ => false,
        };
        wait_while(service, waits, &mut || report(&old.control, task));
        Ok(())
    }
}

/// Frees the memory of the old model.
struct Freeing {
    old: Arc<ModelInUse>,
    drain: Duration,
    control: Arc<LoadControl>,
    task: Arc<RunningTask>,
}

impl Freeing {
    /// Lets answers end for some time, and then ends them.
    fn run(self) -> Result<()> {
        let Self { old, drain, control, task } = &self;
        let service = &old.served.service;
        if service.state() == State::Loading {
            old.control.cancel();
        }
        task.set_phase("draining");
        let deadline = clock::instant() + *drain;
        while !service.is_idle() {
            task.set_answers(service.n_open());
            if control.is_cancelled() {
                return Err(Error::Cancelled);
            }
            if clock::instant() >= deadline {
                service.cancel_all();
            }
            std::thread::park_timeout(LOOK);
        }
        task.set_phase("freeing");
        service.unload();
        let is_in_memory = |state: State| matches!(state, State::Loading | State::Ready);
        wait_while(service, is_in_memory, &mut || {});
        task.set_phase("loading");
        Ok(())
    }
}

/// Reports how far a load is.
fn report(control: &LoadControl, task: &RunningTask) {
    if let Some((done_bytes, total_bytes)) = control.bytes() {
        task.set_bytes(done_bytes, total_bytes);
    }
}

/// Looks at a service again and again while it is in such a state.
fn wait_while(service: &Service, waits: impl Fn(State) -> bool, look: &mut dyn FnMut()) {
    while waits(service.state()) {
        look();
        std::thread::park_timeout(LOOK);
    }
    look();
}
