//! When sessions are saved on a drive: beside other work, before they are dropped, and at the end.
//!
//! **Invariant:** while anything runs, saving takes a small part of the time.

use std::time::Duration;

use moeflux::{Error, Session};

use super::Scheduler;
use crate::answers::Answers;
use crate::prefill::Prefill;
use crate::saved::{CopyProgress, SavableSessions, SavedSessions};
use crate::session_cache::{SaveState, SessionId, UnsavedSession};
use crate::tracked::JobId;

/// Other work takes this many times as long as saving.
const TIME_PART: u32 = 50;

/// Upper bound on the time that saving may take at once for work that was done before.
const CREDIT_MAX: Duration = Duration::from_secs(2);

/// After work this long, waiting for the drive is worth it: the next opportunity may be as far.
const LONG_WORK: Duration = Duration::from_secs(1);

/// Upper bound on the time that a job waits until a session that is dropped for it is saved.
const DROPPED_WAIT: Duration = Duration::from_secs(2);

/// Upper bound on the time that the end of the service waits until everything is saved.
const END_WAIT: Duration = Duration::from_secs(10);

/// How much time saving may take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SavePace {
    credit_ns: i128,
}

impl SavePace {
    fn earn(&mut self, worked: Duration) {
        let credit_ns = self.credit_ns + (worked / TIME_PART).as_nanos().cast_signed();
        self.credit_ns = credit_ns.min(CREDIT_MAX.as_nanos().cast_signed());
    }

    fn spend(&mut self, spent: Duration) {
        self.credit_ns -= spent.as_nanos().cast_signed();
    }

    /// Returns the time that saving may take now.
    fn left(self) -> Duration {
        Duration::from_nanos(u64::try_from(self.credit_ns).unwrap_or(0))
    }
}

/// Identifies a session that may be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SavableId {
    Kept(SessionId),
    /// That of a job's prompt, which is being read or answered.
    Prompt(JobId),
}

/// The sessions of a scheduler.
struct SchedulerSessions<'s, 'e> {
    prefills: &'s mut Vec<Prefill>,
    answers: &'s mut Answers<'e>,
    is_recurrent: bool,
}

impl SavableSessions<SavableId> for SchedulerSessions<'_, '_> {
    fn unsaved(&self) -> Option<UnsavedSession<'_, SavableId>> {
        let kept = self.answers.session_cache.unsaved();
        let kept = kept.map(|unsaved| unsaved.map_id(SavableId::Kept));
        kept.or_else(|| self.prefills.iter().find_map(|it| self.unsaved_prompt(it)))
            .or_else(|| self.answers.unsaved_prompt().map(|it| it.map_id(SavableId::Prompt)))
    }

    fn unsaved_of(&self, id: SavableId) -> Option<UnsavedSession<'_, SavableId>> {
        match id {
            SavableId::Kept(kept) => {
                let unsaved = self.answers.session_cache.unsaved_of(kept);
                unsaved.map(|unsaved| unsaved.map_id(SavableId::Kept))
            }
            SavableId::Prompt(_) => self.unsaved().filter(|unsaved| unsaved.id == id),
        }
    }

    fn session_mut(&mut self, id: SavableId) -> Option<&mut Session> {
        match id {
            SavableId::Kept(kept) => self.answers.session_cache.session_mut(kept),
            SavableId::Prompt(job) => {
                let read = self.prefills.iter_mut().find(|it| it.id() == (job, None));
                match read {
                    Some(prefill) => Some(&mut prefill.session),
                    None => self.answers.prompt_session_mut(job),
                }
            }
        }
    }

    fn set_save_state(&mut self, id: SavableId, n_tokens: usize, save_state: SaveState) {
        match id {
            SavableId::Kept(kept) => self.answers.session_cache.set_save_state(kept, save_state),
            SavableId::Prompt(job) => {
                let read = self.prefills.iter_mut().find(|it| it.id() == (job, None));
                match read {
                    Some(prefill) => prefill.end_mark(n_tokens),
                    None => self.answers.jobs.set_prompt_saved(job),
                }
            }
        }
    }

    fn prompt_ms(&self, n_tokens: usize) -> u64 {
        self.answers.session_cache.rates.prompt_ms(n_tokens)
    }
}

impl SchedulerSessions<'_, '_> {
    /// Returns the part of a prompt that was read and is to be saved before the rest is read.
    fn unsaved_prompt<'p>(&'p self, prefill: &'p Prefill) -> Option<UnsavedSession<'p, SavableId>> {
        let n_tokens = prefill.unsaved_mark(self.is_recurrent)?;
        let origin = self.answers.jobs.of(prefill.job).origin();
        let id = SavableId::Prompt(prefill.job);
        Some(UnsavedSession { id, session: &prefill.session, origin, n_tokens })
    }
}

impl<'e> Scheduler<'e> {
    fn saved_and_sessions(
        &mut self,
    ) -> (Option<&mut SavedSessions<'e, SavableId>>, SchedulerSessions<'_, 'e>) {
        let Self { saved, prefills, answers, context, .. } = self;
        let is_recurrent = context.engine.is_recurrent();
        (saved.as_mut(), SchedulerSessions { prefills, answers, is_recurrent })
    }

    /// Whether sessions are still to be saved on a drive.
    pub(crate) fn is_saving(&mut self) -> bool {
        let (saved, sessions) = self.saved_and_sessions();
        saved.as_ref().is_some_and(|saved| saved.is_behind(&sessions))
    }

    /// Copies parts of sessions that are not saved, after other work that took `worked`. Returns
    /// whether there were any.
    pub(super) fn save_some(&mut self, worked: Duration) -> bool {
        let is_free = self.answers.jobs.len() == 0;
        let clock = self.context.clock;
        let mut save_pace = self.save_pace;
        save_pace.earn(worked);
        let (Some(saved), mut sessions) = self.saved_and_sessions() else { return false };
        let mut has_any = false;
        while is_free || !save_pace.left().is_zero() {
            let begun_at = clock.now();
            let progress = saved.copy_some(&mut sessions);
            let waits = progress == CopyProgress::Waits && worked >= LONG_WORK;
            if waits {
                saved.wait_for_drive(save_pace.left());
            }
            save_pace.spend(clock.now().saturating_sub(begun_at));
            has_any |= progress == CopyProgress::Copied;
            if is_free || progress != CopyProgress::Copied && !waits {
                break;
            }
        }
        self.save_pace = save_pace;
        has_any
    }

    /// Drops a session whose tokens can be read again, after it was saved. Returns whether there
    /// was one.
    pub(super) fn evict_one(&mut self) -> bool {
        self.save_victim();
        self.answers.evict_one()
    }

    /// Does the same, but spares the last conversation of each owner within its share.
    pub(super) fn evict_older(&mut self) -> bool {
        self.save_victim();
        self.answers.session_cache.evict_older()
    }

    /// Drops kept sessions beyond their limits, after they were saved.
    pub(super) fn keep_to_limits(&mut self) {
        while let Some(reason) = self.answers.session_cache.excess() {
            self.save_victim();
            self.answers.session_cache.drop_least_valuable(reason);
        }
    }

    /// Saves the session that is dropped next. While a session is loaded, the drive's thread may
    /// wait for the scheduler, which must then not wait for it.
    fn save_victim(&mut self) {
        if !self.loads.is_empty() {
            return;
        }
        let victim = self.answers.session_cache.unsaved_victim();
        let (saved, mut sessions) = self.saved_and_sessions();
        if let Some((saved, victim)) = saved.zip(victim) {
            saved.save_now(SavableId::Kept(victim), &mut sessions, DROPPED_WAIT);
        }
    }

    /// Ends all jobs with an error. What was computed for them is saved first.
    pub(crate) fn stop_all(&mut self, error: &Error) {
        if self.saved.is_some() {
            for prefill in std::mem::take(&mut self.prefills) {
                if prefill.resumes.is_none() {
                    self.answers.keep(prefill.job, prefill.session);
                    self.answers.jobs.fail_whole(prefill.job, error.clone(), self.context.shared);
                }
            }
            self.answers.stop_all(error);
        }
        self.fail_all(error);
        if let (Some(saved), mut sessions) = self.saved_and_sessions() {
            saved.save_rest(&mut sessions, END_WAIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saving_takes_a_fiftieth_of_the_time_of_other_work() {
        let mut pace = SavePace::default();
        assert!(pace.left().is_zero(), "nothing was done yet");
        pace.earn(Duration::from_millis(500));
        assert_eq!(pace.left(), Duration::from_millis(10));
        pace.spend(Duration::from_millis(25));
        assert!(pace.left().is_zero());
        pace.earn(Duration::from_millis(750));
        assert!(pace.left().is_zero(), "the debt is paid");
        pace.earn(Duration::from_secs(3_600));
        assert_eq!(pace.left(), CREDIT_MAX);
    }
}
