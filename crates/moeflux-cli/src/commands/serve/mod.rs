//! `moeflux serve`: a model behind the usual HTTP APIs.
//!
//! Everything that can be refused is refused before the server listens; the weights are read while
//! the server already reports its health.

mod log;

use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use moeflux::{CONTEXT_DEFAULT, Error, Model, ModelText, Result};
use moeflux_chat::Grammars;
use moeflux_io::{FREED_BYTES_KEPT, give_back_freed_memory};
use moeflux_schedule::{Options, Service};
use moeflux_server::http::{
    ApiKeys, CacheScope, MeasuredRates, ModelInfo, Served, Server, ServerConfig, WaysIn,
};
use serde_json::{Map, Value, json};

use crate::commands::serve::log::LogFormat;
use crate::failure::{CommandFailure, CommandResult};
use crate::model;
use crate::model::hub;
use crate::options::args::ModelArgs;
use crate::options::ranges;
use crate::output::print;
use crate::system::browser::BrowserLauncher;
use crate::system::clock;
use crate::system::in_file::read_file;
use crate::system::interrupt::{Interrupt, StopRequest};
use crate::system::measurements::{MeasuredRate, Measurements};
use crate::system::volume;

/// Default tokens of a session: enough for an agent's prompt and an answer.
const CONTEXT_OF_SESSIONS: usize = 65_536;

/// The memory for requests is a sixteenth of all memory up to this bound, and a thirty-second of a
/// larger memory.
const REQUEST_MEMORY_SIXTEENTH_MAX: u64 = 128 << 20;
/// Lower bound: room for a request with a hundred tools next to one of 65,536 tokens.
const REQUEST_MEMORY_BYTES_MIN: u64 = 32 << 20;
/// Upper bound: room for bodies of 32 MB.
const REQUEST_MEMORY_BYTES_MAX: u64 = 1 << 30;

/// Windows ends a process five seconds after its console was closed.
const FORCED_DRAIN: Duration = Duration::from_secs(2);

/// Upper bound on the size of a key file.
const KEY_FILE_BYTES_MAX: u64 = 1 << 20;

/// The arguments of `moeflux serve`.
#[derive(Debug, Args)]
#[command(after_help = "Every option can also be set by an environment variable, such as \
    MOEFLUX_API_KEY_FILE for --api-key-file. The command line takes precedence.")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Address to listen on; any but a loopback address needs --api-key-file
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "N", value_parser = ranges::port, default_value = "8080")]
    port: u16,
    /// Open the server's page in a browser as soon as the server listens
    #[arg(long)]
    open: bool,
    /// Also listen on a Unix socket, which only this user can open
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// File with the keys that clients may use, one per line [default: no key is required]
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Name of this machine that clients may use in addresses, in addition to its own; may be given
    /// several times
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    allowed_host: Vec<String>,
    /// Web page origin that may use the server from a browser, for example http://localhost:3000,
    /// or * for all; may be given several times
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', value_parser = ranges::origin)]
    allowed_origin: Vec<String>,
    /// Number of prompts and answers that are computed at the same time
    #[arg(long, value_name = "N", value_parser = ranges::sessions, default_value = "4")]
    sessions: NonZeroUsize,
    /// Memory for conversations that wait for their next turn, within --memory [default: what
    /// running answers leave free, unless experts make better use of it]
    #[arg(long, value_name = "SIZE", value_parser = ranges::kept_bytes)]
    keep_memory: Option<u64>,
    /// Number of conversations that are kept for their next turn; 0 keeps none
    #[arg(long, value_name = "N", value_parser = ranges::queue, default_value = "64")]
    keep_sessions: usize,
    /// Number of requests that may wait for a free session; any more get status 429
    #[arg(long, value_name = "N", value_parser = ranges::queue, default_value = "64")]
    queue: usize,
    /// Maximum number of tokens of a prompt and its answer together [default: 65536, or the model's
    /// limit if that is lower]
    #[arg(long, value_name = "N", value_parser = ranges::tokens, allow_negative_numbers = true)]
    context: Option<NonZeroUsize>,
    /// Name of the model in answers and in /v1/models; more names may follow [default: the name of
    /// its folder, or OWNER/NAME]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    served_name: Vec<String>,
    /// Refuse requests that name another model
    #[arg(long)]
    strict_model: bool,
    /// Read earlier answers as the client sends them, not as they were sampled
    #[arg(long)]
    no_replay: bool,
    /// Let clients with different keys share cached prompts and answers: faster if many send the
    /// same instructions, but a client can learn what others asked
    #[arg(long)]
    cache_shared: bool,
    /// Free the model's memory after this time without a request (90s, 10m, 2h); the next request
    /// loads the model again
    #[arg(long, value_name = "TIME", value_parser = ranges::time)]
    unload_after: Option<Duration>,
    /// How long running answers may continue after Ctrl-C or SIGTERM
    #[arg(long, value_name = "TIME", value_parser = ranges::time, default_value = "30s")]
    drain: Duration,
    /// Format of the log lines on stderr
    #[arg(long, value_enum, default_value = "text")]
    log: LogFormat,
    /// Also log prompts
    #[arg(long)]
    log_prompts: bool,
}

/// Runs the command.
pub(crate) fn run(args: &ServeArgs) -> CommandResult {
    if args.model.trace.is_some() {
        let problem = "--trace: a server writes no trace; `moeflux generate` does";
        return Err(CommandFailure::Usage(problem.to_owned()));
    }
    // A server frees much memory in many threads, and keeps running.
    give_back_freed_memory();
    let opened = model::open(&args.model)?;
    let text = opened.text()?;
    let context = model::context_for(&opened, args.context, CONTEXT_OF_SESSIONS)?;
    let info = info(args, opened.path(), context);
    log::begin(args.log)?;
    let request_memory_bytes = request_memory_bytes(model::memory_bytes(args.model.memory));
    let server = Server::bind(config(args, request_memory_bytes)?)?;
    let stopper = server.stopper();
    let interrupt = Interrupt::listen_and(move |request| match request {
        StopRequest::Graceful => stopper.stop(),
        StopRequest::Forced => stopper.stop_within(FORCED_DRAIN),
    });
    // Grammars have vocabulary tables, which are built for the first answer with tools.
    let tables_bytes = Grammars::table_bytes(&text);
    let beside_bytes = (request_memory_bytes + tables_bytes) as u64 + FREED_BYTES_KEPT;
    let reservation = model::MemoryReservation {
        at_first: context.min(CONTEXT_DEFAULT),
        at_most: context.saturating_mul(args.sessions.get()),
        beside_bytes,
    };
    let service = Arc::new(service(args, (opened, context, reservation), &text, interrupt)?);
    let addresses: Vec<SocketAddr> = server.addresses().collect();
    let line = ready_message(args, &info.names[0], (&addresses, context));
    let page = args.open.then(|| page_address(&addresses));
    let stopper = server.stopper();
    let waiting = Arc::clone(&service);
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
            Err(_) => stopper.stop(),
        }
        opened
    });
    let opening = opening.map_err(|error| Error::Machine(format!("cannot serve: {error}")))?;
    let seconds_since_1970 = clock::seconds_since_1970;
    server.run(Served { service, text, model: info, seconds_since_1970 })?;
    let opened = opening.join().unwrap_or(Ok(()));
    match opened {
        // Ctrl-C while the weights were read.
        Err(Error::Cancelled) => Ok(()),
        opened => Ok(opened?),
    }
}

/// Returns the memory for requests, given the total memory.
fn request_memory_bytes(n_bytes: u64) -> usize {
    let request_memory_bytes = (n_bytes / 16).min(REQUEST_MEMORY_SIXTEENTH_MAX).max(n_bytes / 32);
    let request_memory_bytes =
        request_memory_bytes.clamp(REQUEST_MEMORY_BYTES_MIN, REQUEST_MEMORY_BYTES_MAX);
    usize::try_from(request_memory_bytes).unwrap_or(usize::MAX)
}

fn config(args: &ServeArgs, request_memory_bytes: usize) -> CommandResult<ServerConfig> {
    let addresses = (args.host.as_str(), args.port).to_socket_addrs();
    let addresses = addresses.map_err(|error| {
        CommandFailure::Usage(format!(
            "--host {}: {error}; give an address such as 127.0.0.1",
            args.host
        ))
    })?;
    let keys = match &args.api_key_file {
        None => ApiKeys::default(),
        Some(path) => keys(path)?,
    };
    let addresses: Vec<SocketAddr> = addresses.collect();
    if let Some(open) = addresses.iter().find(|it| !it.ip().is_loopback() && keys.is_empty()) {
        let problem = format!(
            "others can reach {open}, so clients need a key: give a file with --api-key-file"
        );
        return Err(Error::Input(problem).into());
    }
    Ok(ServerConfig {
        addresses,
        unix: args.unix.clone(),
        keys,
        allowed_hosts: args.allowed_host.clone(),
        allowed_origins: args.allowed_origin.clone(),
        ways_in: WaysIn {
            host: "`--allowed-host NAME` allows it",
            origin: "`--allowed-origin ORIGIN` allows it",
        },
        strict_model: args.strict_model,
        log_prompts: args.log_prompts,
        drain: args.drain,
        cache: if args.cache_shared { CacheScope::Shared } else { CacheScope::PerKey },
        request_memory_bytes,
        replay_bytes: if args.no_replay { 0 } else { ServerConfig::default().replay_bytes },
        ..ServerConfig::default()
    })
}

fn keys(path: &Path) -> Result<ApiKeys> {
    let bytes = read_file(path, KEY_FILE_BYTES_MAX)?;
    let malformed = |problem: String| Error::malformed(path, problem);
    let text = String::from_utf8(bytes).map_err(|_| malformed("is not UTF-8".to_owned()))?;
    let keys = ApiKeys::from_lines(&text).map_err(|error| malformed(error.to_string()))?;
    if keys.is_empty() {
        return Err(malformed("has no key: write one per line".to_owned()));
    }
    Ok(keys)
}

fn service(
    args: &ServeArgs,
    (opened, context, reservation): (Model, usize, model::MemoryReservation),
    text: &Arc<ModelText>,
    interrupt: Interrupt,
) -> CommandResult<Service> {
    let mut options = Options::new(context);
    options.n_sessions = args.sessions.get();
    options.n_queue = args.queue;
    options.kept.n_sessions = args.keep_sessions;
    options.kept.n_bytes = args.keep_memory;
    options.unload_after = args.unload_after;
    let model_args = args.model.clone();
    let backend = args.model.backend()?;
    let load = move |model| model::load_on(backend, (model, reservation), &model_args, &interrupt);
    Ok(Service::start(model::loader(opened, load), Arc::clone(text), options)?)
}

fn info(args: &ServeArgs, dir: &Path, context: usize) -> ModelInfo {
    let mut names = args.served_name.clone();
    if names.is_empty() {
        names.push(hub::name_of(dir));
    }
    let mut about = Map::new();
    let mut set = |key: &str, value: Value| about.insert(key.to_owned(), value);
    set("build", json!(concat!("moeflux ", env!("CARGO_PKG_VERSION"))));
    set("n_sessions", json!(args.sessions.get()));
    set("n_queue", json!(args.queue));
    set("n_context", json!(context));
    let created_s = u64::try_from(clock::seconds_since_1970()).unwrap_or_default();
    ModelInfo { names, created_s, about, measured: measured(dir) }
}

/// Returns what `moeflux doctor` has measured of memory and of the model's drive.
fn measured(dir: &Path) -> Option<MeasuredRates> {
    let kept = Measurements::load();
    let bytes_per_s = |rate: Option<MeasuredRate>| rate.map(|rate| rate.bytes_per_s);
    let rates = MeasuredRates {
        drive_bytes_per_s: bytes_per_s(kept.drive(Some(&volume::key(dir)))),
        memory_bytes_per_s: bytes_per_s(kept.memory()),
    };
    (rates.drive_bytes_per_s.is_some() || rates.memory_bytes_per_s.is_some()).then_some(rates)
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

    #[test]
    fn requests_have_a_part_of_the_memory() {
        let mib = |n_mib: u64| {
            let n_bytes = request_memory_bytes(n_mib << 20);
            n_bytes >> 20
        };
        assert_eq!([mib(100), mib(512), mib(1_024), mib(2_048)], [32, 32, 64, 128]);
        assert_eq!([mib(4_096), mib(8_192), mib(32_768), mib(65_536)], [128, 256, 1_024, 1_024]);
    }
}
