//! The model of a chat: its engine on a thread of its own, its chat template and its tokenizer.
//!
//! **Invariant:** everything that can be refused is refused before the weights are read.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use moeflux::{CONTEXT_DEFAULT, Error, Model};
use moeflux_chat::Chat;
use moeflux_schedule::{Options, SavedConversations, Service};

use crate::commands::chat::console::ChatConsole;
use crate::failure::CommandResult;
use crate::model::hub;
use crate::model::{self, MemoryReservation};
use crate::options::args::ModelArgs;
use crate::options::cache;
use crate::system::interrupt::Interrupt;

/// The default length of a conversation in tokens, if the model supports as many.
const CONTEXT_OF_CHATS: usize = 65_536;

/// The model of a chat, if one is open, and how models are opened.
pub(crate) struct ModelSlot {
    args: ModelArgs,
    context: Option<NonZeroUsize>,
    saved: Option<SavedConversations>,
    loaded: Option<ChatModel>,
}

/// A loaded model to chat with.
pub(crate) struct ChatModel {
    /// As given by the user; `None` for the built-in model.
    pub(crate) named: Option<PathBuf>,
    pub(crate) dir: PathBuf,
    pub(crate) name: String,
    pub(crate) chat: Chat,
    pub(crate) service: Service,
}

/// A model whose headers were read.
pub(crate) struct CheckedModel {
    named: Option<PathBuf>,
    model: Model,
    name: String,
    chat: Chat,
    context: usize,
}

impl ModelSlot {
    /// Creates a slot without a model.
    pub(crate) fn new(
        args: ModelArgs,
        context: Option<NonZeroUsize>,
        saved: Option<SavedConversations>,
    ) -> Self {
        Self { args, context, saved, loaded: None }
    }

    /// Opens the named model, or the built-in one. The previous one stays only if the headers of
    /// the new one are refused.
    pub(crate) fn open(&mut self, named: Option<&Path>, console: &ChatConsole) -> CommandResult {
        let checked = CheckedModel::new(named, &self.args, self.context)?;
        self.loaded = None;
        let (args, saved) = (&self.args, self.saved.clone());
        let loaded = console.load(|interrupt| checked.open(args, saved, interrupt));
        self.loaded = Some(loaded?);
        Ok(())
    }

    /// Returns the model, if one is open.
    pub(crate) fn get(&self) -> Option<&ChatModel> {
        self.loaded.as_ref()
    }
}

impl CheckedModel {
    /// Checks a folder or a GGUF file, or the built-in model.
    pub(crate) fn new(
        named: Option<&Path>,
        args: &ModelArgs,
        context: Option<NonZeroUsize>,
    ) -> CommandResult<Self> {
        // The options belong to the model of the command line, not to one that is named later.
        let model = match named == args.model.as_deref() {
            true => model::open(args)?,
            false => Model::open(model::path(named)?)?,
        };
        let chat = Chat::open(&model)?;
        if !chat.has_template() {
            let problem = "has no chat template: `moeflux generate` continues a text with it";
            return Err(Error::malformed(model.path(), problem).into());
        }
        let context = model::context_for(&model, context, CONTEXT_OF_CHATS)?;
        let name = match named {
            None => "the demo model".to_owned(),
            Some(_) => hub::name_of(model.path()),
        };
        Ok(Self { named: named.map(Path::to_owned), model, name, chat, context })
    }

    /// Reads the weights, with a progress bar.
    pub(crate) fn open(
        self,
        args: &ModelArgs,
        saved: Option<SavedConversations>,
        interrupt: &Interrupt,
    ) -> CommandResult<ChatModel> {
        let Self { named, model, name, chat, context } = self;
        let dir = model.path().to_owned();
        let chat = match &saved {
            Some(saved) => chat.with_saved(saved.clone())?,
            None => chat,
        };
        let mut options = Options::new(context);
        options.n_sessions = 1;
        options.n_queue = 1;
        options.saved.clone_from(&saved);
        let reservation =
            MemoryReservation { at_first: context.min(CONTEXT_DEFAULT), ..context.into() };
        let backend = args.backend()?;
        let (args, interrupt) = (args.clone(), interrupt.clone());
        let of_model = hub::name_of(&dir);
        let load = move |model| {
            let loaded = model::load_traced(backend, (model, reservation), &args, &interrupt);
            loaded.inspect(|engine| cache::name_model(saved.as_ref(), engine, &of_model))
        };
        let service = Service::start(model::loader(model, load), Arc::clone(chat.text()), options)?;
        service.wait_until_open()?;
        Ok(ChatModel { named, dir, name, chat, service })
    }
}
