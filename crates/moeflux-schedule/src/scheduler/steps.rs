//! The next step of prompts, and the work between its layers.
//!
//! The prompt with the least left to read is next, unless the oldest one is due. A short prompt
//! that arrives during a step is read between its layers, in small steps. **Invariant:** see
//! [`crate::prefill::precedence`].

use std::sync::Arc;
use std::time::Duration;

use moeflux::step::N_ROWS_BESIDE;
use moeflux::step::{Feed, Logits, StepOutput, step};
use moeflux::{Error, Result};

use super::admission::N_ROWS_SHORT;
use super::{JobSource, PrefillInStep, Scheduler};
use crate::answers::Context;
use crate::prefill::Prefill;
use crate::prefill::chunk::{ChunkOutcome, PrefillChunk};
use crate::prefill::scores::PromptScorer;
use crate::shared::ExpertsReport;

/// Target time for one layer of a prompt's step, during which answers wait. Applies where experts
/// are in memory.
const LAYER_TIME: Duration = Duration::from_millis(150);

/// Lower bound on the rows of a prompt's step: fewer would read all weights for little work.
const N_ROWS_LEAST: usize = 64;

impl Scheduler<'_> {
    /// Returns the upper bound on the rows of the next step of prompts.
    fn n_rows_max(&self) -> usize {
        let n_rows_max = self.context.engine.n_rows_now();
        let is_beside = self.answers.n_running() > 0;
        // With streamed experts, reading them determines the time of a layer.
        if !is_beside || self.is_streaming || self.row_time.is_zero() {
            return n_rows_max;
        }
        let n_rows = LAYER_TIME.as_nanos() / self.row_time.as_nanos();
        let n_rows = usize::try_from(n_rows).unwrap_or(usize::MAX);
        n_rows.max(N_ROWS_LEAST).min(n_rows_max)
    }

    /// Returns the rows of each prompt in the next step.
    fn plan(&self) -> Vec<usize> {
        let due = self.precedence.due();
        let mut order: Vec<usize> = (0..self.prefills.len()).collect();
        order.sort_by_key(|idx| {
            let prefill = &self.prefills[*idx];
            (Some(prefill.id()) != due, prefill.n_left())
        });
        let mut n_rows = vec![0; self.prefills.len()];
        let [first, others @ ..] = &*order else { return n_rows };
        let left = |idx: usize| self.prefills[idx].n_left();
        let mut n_rows_max = self.n_rows_max();
        // A waiting prompt with less left to read comes next; short ones are read between the
        // layers. Where experts are streamed, shorter steps would read all of them again.
        let mut next = others.iter().map(|idx| left(*idx)).filter(|n_left| *n_left > N_ROWS_SHORT);
        if let (false, Some(n_left)) = (self.is_streaming, next.next()) {
            n_rows_max = n_rows_max.min(n_left);
        }
        n_rows[*first] = self.prefills[*first].n_rows(n_rows_max);
        let is_short = left(*first) <= N_ROWS_SHORT;
        let n_rows_shared = match (self.is_streaming, is_short) {
            (false, _) => N_ROWS_SHORT.min(n_rows_max),
            // All of them read about the same experts.
            (true, true) => n_rows_max,
            (true, false) => n_rows_max.min(2 * n_rows[*first]),
        };
        let mut n_free = n_rows_shared.saturating_sub(n_rows[*first]);
        for idx in others {
            let n_left = left(*idx);
            let is_part_of_use = self.is_streaming && !is_short;
            // A short prompt is read between the layers of a long step, and need not wait for its
            // end.
            let is_alike = (n_left <= N_ROWS_SHORT) == is_short;
            if n_free > 0 && is_alike && (n_left <= n_free || is_part_of_use) {
                n_rows[*idx] = self.prefills[*idx].n_rows(n_free);
                n_free -= n_rows[*idx];
            }
        }
        n_rows
    }

    /// Runs one step of prompts, and other work between its layers.
    pub(super) fn read_chunk(&mut self, job_source: &mut JobSource<'_>) {
        self.prefills.iter_mut().for_each(|it| it.is_short_of_room = false);
        self.note_oldest();
        let n_rows = self.plan();
        let mut chosen = self.take_out(&n_rows);
        let scores = chosen.iter().map(|(prefill, _)| self.scorer(prefill)).collect();
        self.under_way = chosen.iter().map(|(prefill, _)| self.in_step(prefill)).collect();
        let mut output = std::mem::take(&mut self.output);
        let (context, is_alone) = (self.context, self.is_alone());
        let between_layers = &mut |spent| self.between_layers(spent, job_source);
        let chunk = PrefillChunk { context, output: &mut output, is_alone, between_layers };
        let ended = chunk.run(&mut chosen, scores);
        self.under_way.clear();
        let n_rows: usize = n_rows.iter().sum();
        if let Ok(ChunkOutcome { spent, .. }) = &ended {
            let n_parts = n_rows * self.context.engine.n_layers();
            self.row_time = *spent / u32::try_from(n_parts.max(1)).unwrap_or(u32::MAX);
        }
        self.end_step(chosen, ended, &output);
        self.output = output;
    }

    /// Determines which prompt is the oldest.
    fn note_oldest(&mut self) {
        let in_step = self.under_way.iter().map(|it| (it.id, it.service));
        let all = self.prefills.iter().map(|it| (it.id(), it.service)).chain(in_step);
        self.precedence.set_oldest(all.min());
    }

    /// Removes the prompts that have rows in a step.
    fn take_out(&mut self, n_rows: &[usize]) -> Vec<(Prefill, usize)> {
        let prefills = std::mem::take(&mut self.prefills).into_iter().zip(n_rows.iter().copied());
        let (chosen, others): (Vec<_>, Vec<_>) = prefills.partition(|(_, n_rows)| *n_rows > 0);
        self.prefills = others.into_iter().map(|(prefill, _)| prefill).collect();
        chosen
    }

    fn scorer(&self, prefill: &Prefill) -> Option<PromptScorer> {
        let job = &self.answers.jobs.of(prefill.job).job;
        let n_top = job.sampling.n_logprobs.unwrap_or(0);
        let prompt = || Arc::clone(&prefill.outline.prompt);
        prefill.is_scored().then(|| PromptScorer::new(prompt(), n_top, prefill.n_done() == 0))
    }

    fn in_step(&self, prefill: &Prefill) -> PrefillInStep {
        PrefillInStep {
            id: prefill.id(),
            owner: self.answers.jobs.owner(prefill.job),
            outline: prefill.outline.clone(),
            n_left: prefill.n_left(),
            service: prefill.service,
        }
    }

    /// Whether only the prompt in the step waits for the end of that step.
    fn is_alone(&self) -> bool {
        self.waiting.is_empty() && self.prefills.is_empty() && self.under_way.len() == 1
    }

    /// Runs other work after a layer of the current step that took `spent`. Returns whether the
    /// step's prompt is alone.
    fn between_layers(&mut self, spent: Duration, job_source: &mut JobSource<'_>) -> bool {
        if self.context.shared.take_watched() {
            self.publish_reads();
        }
        let Context { engine, shared, .. } = self.context;
        shared.answer_experts(|| ExpertsReport::of(engine));
        self.balance.add_prompts(spent);
        self.precedence.add(self.under_way.iter().map(|it| it.id), spent);
        while let Some(submitted) = job_source() {
            self.push(submitted);
        }
        self.admit_short(N_ROWS_SHORT);
        self.note_oldest();
        while self.precedence.due().is_none() && self.read_beside() {
            self.start_answers();
            self.note_oldest();
            self.answer();
        }
        self.answer();
        self.is_alone()
    }

    /// Publishes what was read and where experts are: a long step is watched.
    fn publish_reads(&self) {
        let Context { engine, shared, .. } = self.context;
        let (stream, tiers) = (engine.stream_stats(), engine.tier_stats());
        let rows = engine.row_stats();
        let mut stats = shared.stats();
        (stats.stream, stats.tiers, stats.rows) = (stream, tiers, rows);
    }

    /// Runs steps of answers until they have had as much time as prompts.
    fn answer(&mut self) {
        let n_rows_max = N_ROWS_BESIDE.min(self.context.engine.n_rows_max());
        while self.balance.is_turn_of_answers() {
            let before = self.context.clock.now();
            if !self.answers.step(n_rows_max) {
                return;
            }
            self.balance.add_answers(self.context.clock.now().saturating_sub(before));
        }
    }

    /// Runs a small step of short prompts between the layers of the current step. Returns whether
    /// there were any.
    fn read_beside(&mut self) -> bool {
        let n_rows = self.plan_beside();
        let mut chosen = self.take_out(&n_rows);
        if chosen.is_empty() {
            return false;
        }
        let before = self.context.clock.now();
        let mut output = std::mem::take(&mut self.output_beside);
        let outcomes = step_beside(&mut chosen, &mut output);
        let spent = self.context.clock.now().saturating_sub(before);
        self.balance.add_prompts(spent);
        self.precedence.add(chosen.iter().map(|(prefill, _)| prefill.id()), spent);
        let scores = chosen.iter().map(|_| None).collect();
        let ended = outcomes.map(|outcomes| ChunkOutcome { outcomes, scores, spent });
        self.end_step(chosen, ended, &output);
        self.output_beside = output;
        true
    }

    /// Returns the rows of each prompt in such a step.
    fn plan_beside(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.prefills.len()).collect();
        order.retain(|idx| {
            let prefill = &self.prefills[*idx];
            let is_possible = !prefill.is_scored() && !prefill.is_short_of_room;
            is_possible && !prefill.is_cancelled() && prefill.n_left() <= N_ROWS_SHORT
        });
        order.sort_by_key(|idx| self.prefills[*idx].n_left());
        let mut n_free = N_ROWS_BESIDE.min(self.context.engine.n_rows_max());
        let mut n_rows = vec![0; self.prefills.len()];
        for idx in order {
            n_rows[idx] = self.prefills[idx].n_left().min(n_free);
            n_free -= n_rows[idx];
        }
        n_rows
    }

    /// Handles the outcomes of a step's prompts: they continue, are answered, wait again or fail.
    fn end_step(
        &mut self,
        chosen: Vec<(Prefill, usize)>,
        ended: Result<ChunkOutcome>,
        output: &StepOutput,
    ) {
        match ended {
            Ok(ended) => self.take_up(chosen, ended, output),
            Err(error) => {
                for (prefill, _) in chosen {
                    self.fail_prefill(&prefill, error.clone());
                }
                self.answers.is_stopped |= matches!(error, Error::Stopped(_));
            }
        }
        self.prefills.sort_by_key(Prefill::id);
    }

    fn take_up(&mut self, chosen: Vec<(Prefill, usize)>, ended: ChunkOutcome, output: &StepOutput) {
        let n_rows_in_all: usize = chosen.iter().map(|(_, n_rows)| n_rows).sum();
        self.answers.session_cache.rates.add_prompt(ended.spent, n_rows_in_all);
        let (mut read, mut without_room) = (Vec::new(), Vec::new());
        let outcomes = ended.outcomes.into_iter().zip(ended.scores);
        for (feed_idx, ((mut prefill, n_rows), (outcome, scores))) in
            chosen.into_iter().zip(outcomes).enumerate()
        {
            let rows = |n_rows: usize| u32::try_from(n_rows).expect("rows of a step are few");
            prefill.service += ended.spent * rows(n_rows) / rows(n_rows_in_all);
            if let (Ok(()), Some(scores)) = (&outcome, scores) {
                self.answers.jobs.scored(prefill.job, scores.into_list());
            }
            match outcome {
                Ok(()) if prefill.n_left() == 0 => read.push((feed_idx, prefill)),
                Ok(()) | Err(Error::Cancelled) => self.prefills.push(prefill),
                // Conversations that were already continued are worth less than the checkpoints
                // that the next turn of this one goes back to.
                Err(Error::NoRoom { .. }) if self.evict_older() || prefill.drop_checkpoints() => {
                    self.prefills.push(prefill);
                }
                Err(error @ Error::NoRoom { .. }) => without_room.push((prefill, error)),
                Err(error) => self.fail_prefill(&prefill, error),
            }
        }
        for (feed_idx, Prefill { job, resumes, session, .. }) in read {
            let logits: Option<Logits<'_>> = output.last_of(feed_idx);
            let logits = logits.expect("the last row's logits are wanted");
            match resumes {
                None => self.answers.begin(job, session, logits),
                Some(answer_idx) => self.answers.resume((job, answer_idx), session, logits),
            }
        }
        self.make_room(without_room);
    }

    /// Makes memory for prompts that lack it: drops sessions that do not run, or puts back the
    /// newest of these prompts.
    fn make_room(&mut self, mut without_room: Vec<(Prefill, Error)>) {
        let newest = without_room.pop();
        let is_alone = without_room.is_empty() && self.prefills.is_empty();
        self.prefills.extend(without_room.into_iter().map(|(prefill, _)| prefill));
        match newest {
            None => {}
            Some((prefill, _)) if self.evict_one() => self.prefills.push(prefill),
            Some((prefill, error)) if is_alone && self.answers.n_running() == 0 => {
                self.fail_prefill(&prefill, error);
            }
            Some((prefill, _)) => self.put_back(&prefill),
        }
    }
}

/// Runs one step; returns the outcome for each prompt. Prompts without room try again in a step of
/// their own.
fn step_beside(
    chosen: &mut [(Prefill, usize)],
    output: &mut StepOutput,
) -> Result<Vec<Result<()>>> {
    let feeds = chosen.iter_mut().map(|(prefill, n_rows)| prefill.feed_beside(*n_rows));
    let mut feeds: Vec<Feed<'_>> = feeds.collect();
    step(&mut feeds, output)?;
    let mut outcomes: Vec<Result<()>> = feeds.iter_mut().map(Feed::outcome).collect();
    for ((prefill, _), outcome) in chosen.iter_mut().zip(&mut outcomes) {
        if matches!(outcome, Err(Error::NoRoom { .. })) {
            prefill.is_short_of_room = true;
            *outcome = Err(Error::Cancelled);
        }
    }
    Ok(outcomes)
}
