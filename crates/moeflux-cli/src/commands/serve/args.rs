//! The arguments of `moeflux serve`, and the settings of the server that follow from them.
//!
//! **Invariant:** impossible combinations are refused before the server listens.

use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use moeflux::{Error, Result};
use moeflux_server::http::{ApiKeys, CacheScope, ManageAccess, ServerConfig, WaysIn};

use crate::commands::serve::log::LogFormat;
use crate::failure::{CommandFailure, CommandResult};
use crate::options::args::ModelArgs;
use crate::options::cache::CacheArgs;
use crate::options::ranges;
use crate::system::in_file::read_file;

/// The memory for requests is a sixteenth of all memory up to this bound, and a thirty-second of a
/// larger memory.
const REQUEST_MEMORY_SIXTEENTH_MAX: u64 = 128 << 20;
/// Lower bound: room for a request with a hundred tools next to one of 65,536 tokens.
const REQUEST_MEMORY_BYTES_MIN: u64 = 32 << 20;
/// Upper bound: room for bodies of 32 MB.
const REQUEST_MEMORY_BYTES_MAX: u64 = 1 << 30;

/// Upper bound on the size of a key file.
const KEY_FILE_BYTES_MAX: u64 = 1 << 20;

/// The arguments of `moeflux serve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Every option can also be set by an environment variable, such as \
    MOEFLUX_API_KEY_FILE for --api-key-file. The command line takes precedence.")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Address to listen on; any but a loopback address needs --api-key-file
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(super) host: String,
    /// Port to listen on; 0 picks a free one
    #[arg(long, value_name = "N", value_parser = ranges::port, default_value = "8080")]
    pub(super) port: u16,
    /// Open the server's page in a browser as soon as the server listens
    #[arg(long)]
    pub(super) open: bool,
    /// Folder whose models the page offers, besides those of the hub's cache; may be given several
    /// times
    #[arg(long, value_name = "DIR")]
    pub(super) models: Vec<PathBuf>,
    /// Let clients whose key is marked with `manage` in the key file download, load and remove
    /// models [default: the page of this machine may, if there are no keys and only this machine
    /// can reach the server]
    #[arg(long, requires = "api_key_file")]
    pub(super) allow_manage: bool,
    /// Also listen on a Unix socket, which only this user can open
    #[arg(long, value_name = "PATH")]
    pub(super) unix: Option<PathBuf>,
    /// File with the keys that clients may use, one per line, with the word `manage` after those
    /// that --allow-manage is for, and `name=NAME` after those that are to keep their saved
    /// conversations when they are replaced [default: no key is required]
    #[arg(long, value_name = "FILE")]
    pub(super) api_key_file: Option<PathBuf>,
    /// Name of this machine that clients may use in addresses, in addition to its own; may be given
    /// several times
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(super) allowed_host: Vec<String>,
    /// Web page origin that may use the server from a browser, for example http://localhost:3000,
    /// or * for all; may be given several times
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', value_parser = ranges::origin)]
    pub(super) allowed_origin: Vec<String>,
    /// Number of prompts and answers that are computed at the same time
    #[arg(long, value_name = "N", value_parser = ranges::sessions, default_value = "4")]
    pub(super) sessions: NonZeroUsize,
    /// Memory for conversations that wait for their next turn, within --memory [default: what
    /// running answers leave free, unless experts make better use of it]
    #[arg(long, value_name = "SIZE", value_parser = ranges::kept_bytes)]
    pub(super) keep_memory: Option<u64>,
    /// Number of conversations that are kept for their next turn; 0 keeps none
    #[arg(long, value_name = "N", value_parser = ranges::queue, default_value = "64")]
    pub(super) keep_sessions: usize,
    /// Number of requests that may wait for a free session; any more get status 429
    #[arg(long, value_name = "N", value_parser = ranges::queue, default_value = "64")]
    pub(super) queue: usize,
    /// Maximum number of tokens of a prompt and its answer together [default: 65536, or the model's
    /// limit if that is lower]
    #[arg(long, value_name = "N", value_parser = ranges::tokens, allow_negative_numbers = true)]
    pub(super) context: Option<NonZeroUsize>,
    /// Name of the model in answers and in /v1/models; more names may follow [default: the name of
    /// its folder, or OWNER/NAME]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(super) served_name: Vec<String>,
    /// Refuse requests that name another model
    #[arg(long)]
    pub(super) strict_model: bool,
    /// Read earlier answers as the client sends them, not as they were sampled
    #[arg(long)]
    pub(super) no_replay: bool,
    /// Let clients with different keys share cached prompts and answers: faster if many send the
    /// same instructions, but a client can learn what others asked
    #[arg(long)]
    pub(super) cache_shared: bool,
    #[command(flatten)]
    pub(super) cache: CacheArgs,
    /// Free the model's memory after this time without a request (90s, 10m, 2h); the next request
    /// loads the model again
    #[arg(long, value_name = "TIME", value_parser = ranges::time)]
    pub(super) unload_after: Option<Duration>,
    /// How long running answers may continue after Ctrl-C or SIGTERM
    #[arg(long, value_name = "TIME", value_parser = ranges::time, default_value = "30s")]
    pub(super) drain: Duration,
    /// Format of the log lines on stderr
    #[arg(long, value_enum, default_value = "text")]
    pub(super) log: LogFormat,
    /// Also log prompts
    #[arg(long)]
    pub(super) log_prompts: bool,
}

/// Returns the memory for requests, given the total memory.
pub(super) fn request_memory_bytes(n_bytes: u64) -> usize {
    let request_memory_bytes = (n_bytes / 16).min(REQUEST_MEMORY_SIXTEENTH_MAX).max(n_bytes / 32);
    let request_memory_bytes =
        request_memory_bytes.clamp(REQUEST_MEMORY_BYTES_MIN, REQUEST_MEMORY_BYTES_MAX);
    usize::try_from(request_memory_bytes).unwrap_or(usize::MAX)
}

/// Returns the settings of the server.
pub(super) fn config(args: &ServeArgs, request_memory_bytes: usize) -> CommandResult<ServerConfig> {
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
    if let Some(missing) = args.models.iter().find(|folder| !folder.is_dir()) {
        let problem = format!("--models {}: there is no such folder", missing.display());
        return Err(CommandFailure::Usage(problem));
    }
    if args.allow_manage && !keys.has_manager() {
        let problem = "--allow-manage: no key is marked: write `manage` after a key in the file of \
                       --api-key-file";
        return Err(CommandFailure::Usage(problem.to_owned()));
    }
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
            manage: match args.allow_manage {
                true => "write `manage` after a key in the key file",
                false => "--allow-manage lets clients with a marked key do so",
            },
        },
        manage: match args.allow_manage {
            true => ManageAccess::MarkedKeys,
            false => ManageAccess::Local,
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

#[cfg(test)]
mod tests {
    use super::*;

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
