//! Runs a pattern's program over a text and counts its steps.
//!
//! Branches are tried in order, with backtracking on failure, as the expression's author expects.
//! Runs of characters from which every continuation failed are remembered: otherwise `\s+$` would
//! try each space of a long run with all the spaces after it. **Invariant:** matches are in
//! ascending order and do not overlap, on character boundaries; every operation, character and
//! backtrack takes a step of the budget.

use std::cell::Cell;

use tokenizers::Offsets;

use crate::text::tokenizer::pattern::{Anchor, Pattern, PatternOp};

/// Step budget of any text, independent of its length.
const STEPS_MIN: usize = 4 << 20;
/// Additional steps per byte. Published expressions take 5 to 20, the worst texts for them 60.
const STEPS_PER_BYTE: usize = 256;
/// Maximum backtracking points: 160 MB. Published expressions have a few at a time.
const BACKTRACK_MAX: usize = 4 << 20;

/// The remaining steps for one text and all patterns that split it.
#[derive(Debug)]
pub(in crate::text) struct StepBudget(Cell<usize>);

impl StepBudget {
    /// Creates the budget of a text before its length is known.
    pub(in crate::text) fn new() -> Self {
        Self(Cell::new(STEPS_MIN))
    }

    /// Adds steps for `n_bytes` of the text.
    pub(in crate::text) fn add_bytes(&self, n_bytes: usize) {
        self.0.set(self.0.get().saturating_add(n_bytes.saturating_mul(STEPS_PER_BYTE)));
    }

    fn take(&self, n_steps: usize) -> Result<(), String> {
        let left = self.0.get().checked_sub(n_steps).ok_or_else(|| {
            "its expression for splitting takes too many steps on this text".to_owned()
        })?;
        self.0.set(left);
        Ok(())
    }
}

impl Pattern {
    /// Returns all matches, each from the end of the previous one. An empty match directly after
    /// another is skipped.
    pub(in crate::text) fn matches<'a>(
        &'a self,
        text: &'a str,
        budget: &'a StepBudget,
    ) -> Matches<'a> {
        let dead = vec![None; self.ops.len()];
        let matcher = Matcher { pattern: self, text, budget, points: Vec::new(), dead };
        Matches { matcher, start: Some(0), last_end: None }
    }
}

/// Finds matches one at a time, so that those of a long text are never stored.
pub(in crate::text) struct Matches<'a> {
    matcher: Matcher<'a>,
    /// Start of the next search; `None` at the end of the text.
    start: Option<usize>,
    last_end: Option<usize>,
}

impl Iterator for Matches<'_> {
    type Item = Result<Offsets, String>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(start) = self.start {
            let end = match self.matcher.from(0, start) {
                Ok(end) => end,
                Err(problem) => {
                    self.start = None;
                    return Some(Err(problem));
                }
            };
            let end = end.filter(|end| *end > start || self.last_end != Some(start));
            self.start = match end {
                Some(end) if end > start => Some(end),
                _ => {
                    let next = self.matcher.text[start..].chars().next();
                    next.map(|character| start + character.len_utf8())
                }
            };
            if let Some(end) = end {
                self.last_end = Some(end);
                return Some(Ok((start, end)));
            }
        }
        None
    }
}

/// The alternative to try if the present path fails.
#[derive(Clone, Copy)]
enum BacktrackPoint {
    Branch {
        op: usize,
        at: usize,
    },
    /// A greedy run from `start` to `end`, reduced to `at`, at least to `least`.
    Fewer {
        op: usize,
        start: usize,
        end: usize,
        least: usize,
        at: usize,
    },
    /// A lazy run at `at` that may take `n_more` characters.
    More {
        op: usize,
        at: usize,
        n_more: usize,
    },
}

/// The state of matching a pattern in a text.
struct Matcher<'a> {
    pattern: &'a Pattern,
    text: &'a str,
    budget: &'a StepBudget,
    points: Vec<BacktrackPoint>,
    /// Range of each greedy run in which all ends were tried and failed.
    dead: Vec<Option<(usize, usize)>>,
}

impl Matcher<'_> {
    /// Returns the end of the first path from an operation to its `Accept`, if there is one.
    fn from(&mut self, op: usize, at: usize) -> Result<Option<usize>, String> {
        let n_points = self.points.len();
        let mut next = Some((op, at));
        loop {
            self.budget.take(1)?;
            if let Some((op, at)) = next {
                if self.pattern.ops[op] == PatternOp::Accept {
                    self.points.truncate(n_points);
                    return Ok(Some(at));
                }
                next = self.step(op, at)?;
            } else if self.points.len() > n_points {
                next = self.back()?;
            } else {
                return Ok(None);
            }
        }
    }

    fn step(&mut self, op: usize, at: usize) -> Result<Option<(usize, usize)>, String> {
        let next = op + 1;
        Ok(match self.pattern.ops[op] {
            PatternOp::CharSet(set) => self.after_one(set, at).map(|at| (next, at)),
            PatternOp::Greedy { set, min, max } => self.greedy(op, at, (set, min, max))?,
            PatternOp::Lazy { set, min, max } => {
                let (least, n_taken) = self.after_many(set, at, min)?;
                if n_taken < min {
                    return Ok(None);
                }
                self.add_point(BacktrackPoint::More { op, at: least, n_more: max - min })?;
                Some((next, least))
            }
            PatternOp::Split { first, second } => {
                self.add_point(BacktrackPoint::Branch { op: second, at })?;
                Some((first, at))
            }
            PatternOp::Jump(op) => Some((op, at)),
            PatternOp::Ahead { is_wanted, end } => {
                (self.from(next, at)?.is_some() == is_wanted).then_some((end + 1, at))
            }
            PatternOp::Behind { is_wanted, n_chars, end } => {
                self.budget.take(n_chars)?;
                let mut before = self.text[..at].char_indices().rev();
                let start = match n_chars {
                    0 => Some(at),
                    n_chars => before.nth(n_chars - 1).map(|(start, _)| start),
                };
                let found = match start {
                    Some(start) => self.from(next, start)?.is_some(),
                    None => false,
                };
                (found == is_wanted).then_some((end + 1, at))
            }
            PatternOp::Atomic { end } => self.from(next, at)?.map(|at| (end + 1, at)),
            PatternOp::Assert(anchor) => self.is_at(anchor, at).then_some((next, at)),
            PatternOp::Accept => None,
        })
    }

    fn greedy(
        &mut self,
        op: usize,
        at: usize,
        (set, min, max): (usize, usize, usize),
    ) -> Result<Option<(usize, usize)>, String> {
        let is_endless = max == usize::MAX;
        if is_endless && self.dead[op].is_some_and(|(from, to)| (from..=to).contains(&at)) {
            return Ok(None);
        }
        let (least, n_taken) = self.after_many(set, at, min)?;
        if n_taken < min {
            return Ok(None);
        }
        let (end, _) = self.after_many(set, least, max - min)?;
        if least < end || is_endless && at < end {
            self.add_point(BacktrackPoint::Fewer { op, start: at, end, least, at: end })?;
        }
        Ok(Some((op + 1, end)))
    }

    /// Resumes at the last backtracking point; `None` if it leads nowhere.
    fn back(&mut self) -> Result<Option<(usize, usize)>, String> {
        Ok(match self.points.pop() {
            None => None,
            Some(BacktrackPoint::Branch { op, at }) => Some((op, at)),
            Some(BacktrackPoint::Fewer { op, start, end, least, at }) if at <= least => {
                if matches!(self.pattern.ops[op], PatternOp::Greedy { max: usize::MAX, .. }) {
                    self.dead[op] = Some((start, end));
                }
                None
            }
            Some(BacktrackPoint::Fewer { op, start, end, least, at }) => {
                let at = self.text[..at].char_indices().next_back().map_or(0, |(at, _)| at);
                self.add_point(BacktrackPoint::Fewer { op, start, end, least, at })?;
                Some((op + 1, at))
            }
            Some(BacktrackPoint::More { op, at, n_more }) => {
                let (Some(n_more), PatternOp::Lazy { set, .. }) =
                    (n_more.checked_sub(1), self.pattern.ops[op])
                else {
                    return Ok(None);
                };
                let Some(at) = self.after_one(set, at) else { return Ok(None) };
                self.add_point(BacktrackPoint::More { op, at, n_more })?;
                Some((op + 1, at))
            }
        })
    }

    fn add_point(&mut self, point: BacktrackPoint) -> Result<(), String> {
        if self.points.len() >= BACKTRACK_MAX {
            return Err("its expression for splitting branches too often on this text".to_owned());
        }
        self.points.push(point);
        Ok(())
    }

    fn after_one(&self, set: usize, at: usize) -> Option<usize> {
        let character = self.text[at..].chars().next()?;
        self.pattern.sets[set].contains(character).then(|| at + character.len_utf8())
    }

    /// Returns end and length of a run of at most `n_max` characters.
    fn after_many(&self, set: usize, at: usize, n_max: usize) -> Result<(usize, usize), String> {
        let set = &self.pattern.sets[set];
        let (mut end, mut n_taken) = (at, 0);
        for character in self.text[at..].chars() {
            if n_taken >= n_max || !set.contains(character) {
                break;
            }
            end += character.len_utf8();
            n_taken += 1;
        }
        self.budget.take(n_taken)?;
        Ok((end, n_taken))
    }

    fn is_at(&self, anchor: Anchor, at: usize) -> bool {
        let (before, after) = self.text.split_at(at);
        match anchor {
            Anchor::StartText => before.is_empty(),
            Anchor::EndText => after.is_empty(),
            Anchor::StartLine => before.is_empty() || before.ends_with('\n'),
            Anchor::EndLine => after.is_empty() || after.starts_with('\n'),
            Anchor::WordBoundary { is_wanted, set } => {
                let is_word = |character| self.pattern.sets[set].contains(character);
                let is_before = before.chars().next_back().is_some_and(is_word);
                let is_after = after.chars().next().is_some_and(is_word);
                (is_before != is_after) == is_wanted
            }
        }
    }
}
