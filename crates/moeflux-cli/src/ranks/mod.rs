//! This process as one of several that run a model together, if an MPI launcher started it so.
//!
//! **Invariant:** without a launcher nothing is opened. Rank 0 runs the command and speaks; the
//! others follow it in silence, unless rank 0 is the one that is gone.

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
use moeflux::provider::ranks::{Heart, RankGroup, Ranks};
use moeflux::provider::weights::Shares;
use moeflux::{Error, Result};
#[cfg(unix)]
use moeflux_mpi::Known;
use moeflux_mpi::{Launcher, launcher};

use crate::args::{ModelArgs, RankArgs};
use crate::cache::variable;
use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::model;
use crate::print;
use delayed::Delayed;

#[cfg(unix)]
/// Launchers start the last process so long after the first one at most.
const START_TIME: Duration = Duration::from_secs(30);

/// An MPI that does not end the job by then will not.
const ABORT_TIME: Duration = Duration::from_secs(5);

/// A launcher passes on what was said only if the job is not over at once.
const FORWARD_TIME: Duration = Duration::from_millis(200);

/// Who speaks has so long to say what is wrong before others end the job.
const SPEECH_TIME: Duration = Duration::from_millis(500);

/// Meets the other ranks, if there are some.
pub(crate) fn join(args: &RankArgs) -> Outcome<Option<RankGroup>> {
    let asked = args.n_ranks.map(|it| it.get());
    let found = found();
    let launcher = match (asked, found) {
        (Some(1), _) | (None, None) => return no_shares(args),
        (Some(n), None) => {
            return Err(Failure::Usage(format!(
                "--ranks {n}: no MPI launcher started this process: begin with `mpirun -n {n}`"
            )));
        }
        (Some(n), Some(found)) if found.n_ranks != n => {
            return Err(Failure::Usage(format!(
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
        return Err(Failure::Usage(format!(
            "--shares has {} numbers for {} ranks",
            shares.n_ranks(),
            launcher.n_ranks
        )));
    }
    let mut ranks = start(&launcher, args.rank_timeout)?;
    if let Some(delay) = args.rank_delay {
        ranks = Box::new(Delayed::new(ranks, delay));
    }
    let group = RankGroup::new(ranks, shares)?;
    let rank = group.place().rank;
    group.on_break(Box::new(move |error| say(rank, error)));
    Ok(Some(group))
}

/// Lets the others know that this process is there while it waits for somebody to ask something.
#[expect(clippy::disallowed_methods, reason = "it ends with the job, or with the process")]
pub(crate) fn keep_beating(group: &RankGroup, args: &RankArgs) {
    let (heart, pause): (Heart, Duration) = (group.heart(), args.rank_timeout / 3);
    thread::spawn(move || {
        while heart.beat() {
            wait(pause);
        }
    });
}

/// The launcher of this process, if there is one.
fn found() -> Option<Launcher> {
    launcher(&|name| Some(variable(name)?.to_string_lossy().into_owned()))
}

fn no_shares(args: &RankArgs) -> Outcome<Option<RankGroup>> {
    match args.shares.is_empty() {
        true => Ok(None),
        false => Err(Failure::Usage("--shares are for several ranks".to_owned())),
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

/// MPI waits for all ranks when it begins, for ever.
#[cfg(unix)]
#[expect(clippy::disallowed_methods, reason = "it ends soon, or ends the process")]
fn end_unless(has_begun: Receiver<()>, (rank, time): (usize, Duration)) {
    thread::spawn(move || {
        if has_begun.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
            let seconds = time.as_secs();
            print::aside(&format!(
                "error: rank {rank}: MPI has not begun for {seconds} s: a rank is missing"
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

/// Says once what ended the job, and makes sure that it ends.
fn say(rank: usize, error: &Error) {
    let is_first_gone = matches!(error, Error::Rank { rank: 0, .. });
    if rank == 0 || is_first_gone && rank == 1 {
        say_at_once(&format!("error: {error}\n"));
    } else {
        wait(SPEECH_TIME);
    }
    end_soon();
}

/// Says something in one piece, before the job is over.
fn say_at_once(text: &str) {
    print::aside(text.trim_end());
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
    // Nobody sends anything.
    let _ = receiver.recv_timeout(time);
}

/// Whether this process says what goes wrong: rank 0 does, and who is alone.
pub(crate) fn speaks() -> bool {
    found().is_none_or(|launcher| launcher.rank == 0)
}

/// A launcher ends all processes when the first of them fails.
pub(crate) fn let_rank_0_speak() {
    wait(SPEECH_TIME);
}

/// Does what rank 0 tells; whether all went well. Rank 0 hears what does not, and says it.
pub(crate) fn follow(group: &RankGroup, args: &ModelArgs) -> bool {
    // What ends this process ends the job: rank 0 alone can end its work well.
    let interrupt = Interrupt::never();
    let opened = match model::open(args) {
        Ok(opened) => opened,
        Err(error) => return group.refuse(error).is_ok(),
    };
    let loaded = model::load(opened, args, CONTEXT_DEFAULT, &interrupt);
    loaded.is_ok_and(|engine| engine.follow().is_ok())
}

/// The command of rank 0 has failed: it says why, and the others must not wait for more.
pub(crate) fn end(group: &RankGroup, failure: &Failure) {
    say_at_once(&failure.line());
    end_soon();
    group.abort(&failure.to_string());
}
