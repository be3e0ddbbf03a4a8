//! `moeflux serve`: a model behind the usual HTTP APIs.
//!
//! Everything that can be refused is refused before the server listens; the weights are read while
//! the server already reports its health.

mod log;
pub(crate) mod args;
mod start;
mod models;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use moeflux::{Error, Result};
use moeflux_io::give_back_freed_memory;
use moeflux_schedule::SavedConversations;
use moeflux_server::http::{ModelManager, Server, ServerConfig};

use crate::commands::serve::args::{ServeArgs, request_memory_bytes};
use crate::commands::serve::models::{Catalogue, Manager, ModelInUse};
use crate::commands::serve::start::{ModelStarter, OpenedModel};
use crate::failure::{CommandFailure, CommandResult};
use crate::model;
use crate::options::cache::{CacheUse, OpenedCache};
use crate::output::print;
use crate::system::browser::BrowserLauncher;
use crate::system::interrupt::{Interrupt, StopRequest};

/// Windows ends a process five seconds after its console was closed.
const FORCED_DRAIN: Duration = Duration::from_secs(2);

/// Runs the command.
pub(crate) fn run(args: &ServeArgs) -> CommandResult {
    if args.model.trace.is_some() {
        let problem = "--trace: a server writes no trace; `moeflux generate` does";
        return Err(CommandFailure::Usage(problem.to_owned()));
    }
    // A server frees much memory in many threads, and keeps running.
    give_back_freed_memory();
    let request_memory_bytes = request_memory_bytes(model::memory_bytes(args.model.memory));
    // The machine, as it is before a model is loaded.
    let catalogue = Catalogue::new(args)?;
    let opened = OpenedModel::new(args)?;
    log::begin(args.log)?;
    let config = args::config(args, request_memory_bytes)?;
    let (saved, saved_line) = saved(args, &config)?;
    let server = Server::bind(config)?;
    saved_line.iter().for_each(|line| print::stderr_line(line));
    let stopper = server.stopper();
    let interrupt = Interrupt::listen_and(move |request| match request {
        StopRequest::Graceful => stopper.stop(),
        StopRequest::Forced => stopper.stop_within(FORCED_DRAIN),
    });
    let (path, context) = (opened.model.path().to_owned(), opened.context());
    let starter = ModelStarter { args: args.clone(), request_memory_bytes, interrupt, saved };
    let control = starter.control();
    let served = starter.start(opened, Arc::clone(&control), Box::new(|| Ok(())))?;
    let first = ModelInUse { served: served.clone(), path, control: Arc::clone(&control) };
    let manager = Arc::new(Manager::new(catalogue, (starter, server.models()), first));
    // Ranks hold parts of one model, which they agreed on at the start.
    let server = match args.model.group {
        None => server.with_manager(Arc::clone(&manager) as Arc<dyn ModelManager>),
        Some(_) => server,
    };
    let addresses: Vec<SocketAddr> = server.addresses().collect();
    let line = ready_message(args, &served.model.names[0], (&addresses, context));
    let page = args.open.then(|| page_address(&addresses));
    let stopper = server.stopper();
    let waiting = Arc::clone(&served.service);
    let opening = std::thread::Builder::new().name("moeflux-opening".into()).spawn(move || {
        // The page shows that the model is being loaded.
        let mut browser = page.as_deref().map(BrowserLauncher::start);
        let opened = waiting.wait_until_open();
        if let (Some(page), Some(browser)) = (&page, &mut browser) {
            report_browser(page, browser);
        }
        match &opened {
            Ok(()) => print::stderr_line(&line),
            // Without a model, there is no point in waiting for requests.
            Err(_) if !control.was_cancelled() => stopper.stop(),
            // Another one was chosen before this one was loaded.
            Err(_) => return Ok(()),
        }
        opened
    });
    let opening = opening.map_err(|error| Error::Machine(format!("cannot serve: {error}")))?;
    let models = server.models();
    let ended = server.run(served);
    manager.end();
    // What is not saved yet would be lost with the process.
    models.close();
    ended?;
    let opened = opening.join().unwrap_or(Ok(()));
    match opened {
        // Ctrl-C while the weights were read.
        Err(Error::Cancelled) => Ok(()),
        opened => Ok(opened?),
    }
}

/// Opens the folder of saved conversations. Returns it, and what is to be said of it.
fn saved(
    args: &ServeArgs,
    config: &ServerConfig,
) -> Result<(Option<SavedConversations>, Option<String>)> {
    let used = CacheUse {
        owner_names: &config.owner_names(),
        // Who hands out keys serves others, and decides whether what they write is saved.
        off: args.api_key_file.as_ref().map(|_| "with --api-key-file this needs --cache-dir"),
    };
    Ok(match args.cache.open(&used)? {
        OpenedCache::Open(saved, line) => (Some(saved), Some(line)),
        OpenedCache::Refused(line) => (None, Some(line)),
        OpenedCache::Off => (None, None),
    })
}

/// Says so if no browser was opened; the server goes on.
fn report_browser(page: &str, browser: &mut std::result::Result<BrowserLauncher, String>) {
    let problem = match browser {
        Ok(launcher) => launcher.failure(),
        Err(problem) => Some(problem.clone()),
    };
    if let Some(problem) = problem {
        print::stderr_line(&format!("--open: {problem}: open {page} in a browser"));
    }
}

/// Returns the address of the page: that of the first socket, and of this machine if the socket
/// listens on all addresses.
fn page_address(addresses: &[SocketAddr]) -> String {
    let first = addresses.first().expect("a server listens on the addresses of --host");
    match first.ip().is_unspecified() {
        true => format!("http://localhost:{}/", first.port()),
        false => format!("http://{first}/"),
    }
}

/// Returns the message printed once the model is loaded.
fn ready_message(
    args: &ServeArgs,
    name: &str,
    (addresses, context): (&[SocketAddr], usize),
) -> String {
    let mut places: Vec<String> = addresses.iter().map(|it| format!("http://{it}")).collect();
    places.extend(args.unix.iter().map(|path| format!("unix:{}", path.display())));
    let (places, sessions) = (places.join(" and "), args.sessions);
    let page = page_address(addresses);
    format!(
        "serving {name} at {places} ({sessions} sessions of up to {context} tokens); its page for \
         browsers is {page}; press Ctrl-C to stop"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_an_address_that_a_browser_can_open() {
        let page = |address: &str| page_address(&[address.parse().unwrap()]);
        assert_eq!(page("127.0.0.1:8080"), "http://127.0.0.1:8080/");
        assert_eq!(page("[::1]:80"), "http://[::1]:80/");
        assert_eq!(page("192.0.2.1:1"), "http://192.0.2.1:1/");
        assert_eq!([page("0.0.0.0:9"), page("[::]:9")], ["http://localhost:9/"; 2]);
    }
}
