//! Runs this process as one of several that run a model together, if an MPI launcher started it.
//!
//! **Invariant:** without a launcher nothing is opened. Rank 0 runs the command and prints; the
//! others follow it silently, unless rank 0 is the one that failed.

pub(crate) mod delayed;
pub(crate) mod times;

#[cfg(unix)]
use std::ffi::OsString;
#[cfg(unix)]
use std::path::Path;
use std::sync::mpsc::channel;
#[cfg(unix)]
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use moeflux::provider::config::CONTEXT_DEFAULT;
use moeflux::provider::ranks::{KeepAlive, RankGroup, Ranks};
use moeflux::provider::weights::Shares;
use moeflux::{Error, Result};
#[cfg(unix)]
use moeflux_mpi::Known;
use moeflux_mpi::{Launcher, launcher};

use crate::failure::{CommandFailure, CommandResult};
use crate::model;
use crate::options::args::{ModelArgs, RankArgs};
use crate::output::print;
use crate::system::cache::variable;
use crate::system::interrupt::Interrupt;
use delayed::DelayedRanks;

#[cfg(unix)]
/// Upper bound on the time between a launcher's first and last process start.
const START_TIME: Duration = Duration::from_secs(30);

/// An MPI that has not ended the job by then never will.
const ABORT_TIME: Duration = Duration::from_secs(5);

/// A launcher forwards output only if the job does not end at once.
const FORWARD_TIME: Duration = Duration::from_millis(200);

/// Time that the reporting rank has to print its error before others end the job.
const REPORT_TIME: Duration = Duration::from_millis(500);

/// Joins the other ranks, if there are any.
pub(crate) fn join(args: &RankArgs) -> CommandResult<Option<RankGroup>> {
    let asked = args.n_ranks.map(|it| it.get());
    let found = found();
    let launcher = match (asked, found) {
        (Some(1), _) | (None, None) => return no_shares(args),
        (Some(n), None) => {
            return Err(CommandFailure::Usage(format!(
                "--ranks {n}: no MPI launcher started this process: start it with `mpirun -n {n}`"
            )));
        }
        (Some(n), Some(found)) if found.n_ranks != n => {
            return Err(CommandFailure::Usage(format!(
                "--ranks {n}, but the launcher started {} processes",
                found.n_ranks
            )));
        }
        (_, Some(found)) => found,
    };
    let shares = match args.shares.as_slice() {
        [] => Shares::equal(launcher.n_ranks),
        shares => Shares::new(shares.iter().map(|it| it.get()).collect()),
    };
    if shares.n_ranks() != launcher.n_ranks {
        return Err(CommandFailure::Usage(format!(
            "--shares has {} numbers for {} ranks",
            shares.n_ranks(),
            launcher.n_ranks
        )));
    }
    let mut ranks = start(&launcher, args.rank_timeout)?;
    if let Some(delay) = args.rank_delay {
        ranks = Box::new(DelayedRanks::new(ranks, delay));
    }
    let group = RankGroup::new(ranks, shares)?;
    let rank = group.topology().rank;
    group.on_break(Box::new(move |error| report_once(rank, error)));
    Ok(Some(group))
}

/// Sends heartbeats to the other ranks while this process waits for requests.
#[expect(clippy::disallowed_methods, reason = "it ends with the job, or with the process")]
pub(crate) fn send_heartbeats(group: &RankGroup, args: &RankArgs) {
    let (keep_alive, pause): (KeepAlive, Duration) = (group.keep_alive(), args.rank_timeout / 3);
    thread::spawn(move || {
        while keep_alive.send() {
            wait(pause);
        }
    });
}

/// Returns the launcher of this process, if there is one.
fn found() -> Option<Launcher> {
    launcher(&|name| Some(variable(name)?.to_string_lossy().into_owned()))
}

fn no_shares(args: &RankArgs) -> CommandResult<Option<RankGroup>> {
    match args.shares.is_empty() {
        true => Ok(None),
        false => Err(CommandFailure::Usage("--shares needs several ranks".to_owned())),
    }
}

#[cfg(unix)]
fn start(launcher: &Launcher, timeout: Duration) -> Result<Box<dyn Ranks>> {
    let named = variable("MOEFLUX_MPI");
    let known = Known {
        library: named.as_deref(),
        processes: Path::new("/proc"),
        variable: &|name| variable(name).map(OsString::from),
    };
    let (begun, has_begun) = channel::<()>();
    end_unless(has_begun, (launcher.rank, timeout.max(START_TIME)));
    let ranks = moeflux_mpi::MpiRanks::start(launcher, known, timeout);
    drop(begun);
    Ok(Box::new(ranks?))
}

/// Ends the process if MPI does not start in time: it waits for all ranks forever.
#[cfg(unix)]
#[expect(clippy::disallowed_methods, reason = "it ends soon, or ends the process")]
fn end_unless(has_begun: Receiver<()>, (rank, time): (usize, Duration)) {
    thread::spawn(move || {
        if has_begun.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
            let seconds = time.as_secs();
            print::stderr_line(&format!(
                "error: rank {rank}: MPI did not start within {seconds} s: a rank is missing"
            ));
            end_process();
        }
    });
}

#[cfg(not(unix))]
fn start(launcher: &Launcher, _timeout: Duration) -> Result<Box<dyn Ranks>> {
    let n_ranks = launcher.n_ranks;
    let problem = "several ranks run on Unix systems only";
    Err(Error::Unsupported(format!("{n_ranks} processes of a launcher: {problem}")))
}

/// Reports once why the job ended, and makes sure that it ends.
fn report_once(rank: usize, error: &Error) {
    let is_first_gone = matches!(error, Error::Rank { rank: 0, .. });
    if rank == 0 || is_first_gone && rank == 1 {
        print_and_wait(&format!("error: {error}\n"));
    } else {
        wait(REPORT_TIME);
    }
    end_soon();
}

/// Prints a text in one piece, before the job ends.
fn print_and_wait(text: &str) {
    print::stderr_line(text.trim_end());
    wait(FORWARD_TIME);
}

#[expect(clippy::disallowed_methods, reason = "it ends the process")]
fn end_soon() {
    thread::spawn(|| {
        wait(ABORT_TIME);
        end_process();
    });
}

#[cfg(unix)]
use moeflux_mpi::end_process;

#[cfg(not(unix))]
fn end_process() {}

fn wait(time: Duration) {
    let (_sender, receiver) = channel::<()>();
    // Never sends: this is a sleep.
    let _ = receiver.recv_timeout(time);
}

/// Returns whether this process reports errors: rank 0 does, and a process without a launcher.
pub(crate) fn reports_errors() -> bool {
    found().is_none_or(|launcher| launcher.rank == 0)
}

/// Gives rank 0 time to report: a launcher ends all processes when the first of them fails.
pub(crate) fn let_rank_0_report() {
    wait(REPORT_TIME);
}

/// Executes the steps of rank 0. Returns whether all went well; errors are sent to rank 0, which
/// reports them.
pub(crate) fn follow(group: &RankGroup, args: &ModelArgs) -> bool {
    // An interrupt ends the job: only rank 0 can end its work cleanly.
    let interrupt = Interrupt::never();
    let opened = match model::open(args) {
        Ok(opened) => opened,
        Err(error) => return group.refuse(error).is_ok(),
    };
    let loaded = model::load(opened, args, CONTEXT_DEFAULT, &interrupt);
    loaded.is_ok_and(|engine| engine.follow().is_ok())
}

/// Handles a failed command on rank 0: reports the error and tells the others to stop waiting.
pub(crate) fn end(group: &RankGroup, failure: &CommandFailure) {
    print_and_wait(&failure.line());
    end_soon();
    group.abort(&failure.to_string());
}
