//! Compiles the regular expression of a `tokenizer.json` into a small program, and finds its
//! matches in a text.
//!
//! Expressions are parsed by fancy-regex, as in the tokenizers library, so that both agree on their
//! meaning. Its matcher is not used: if it gives up in the middle of a text, the library takes this
//! for the end of the matches, and its step limit does not count lookahead. **Invariant:** a
//! program has at most `OPS_MAX` operations; a search either finds the leftmost-first matches, or
//! reports that its steps are used up. This module knows no tokens.

mod matcher;
mod sets;

use fancy_regex::{Assertion, Expr, LookAround};

use crate::text::tokenizer::pattern::sets::{CharSet, CharSets};

pub(in crate::text) use crate::text::tokenizer::pattern::matcher::StepBudget;

/// Maximum bytes of an expression. The longest published one, a list of letters, has 1.5 kB.
const EXPRESSION_BYTES_MAX: usize = 8 << 10;
/// Maximum operations of a program; the published ones have about 60.
const OPS_MAX: usize = 4096;
/// Maximum visits of nodes during compilation: repetitions of an empty expression emit nothing.
const VISITS_MAX: usize = 1 << 16;
/// Maximum number in `{2,5}`; the published ones have 3. Each attempt may consume that many.
const REPEAT_MAX: usize = 1000;
/// Maximum nesting of groups: compilation and lookaround recurse.
const DEPTH_MAX: usize = 64;

/// A compiled expression.
#[derive(Clone, Debug)]
pub(in crate::text) struct Pattern {
    ops: Vec<PatternOp>,
    sets: Vec<CharSet>,
}

/// An operation. Targets are indices into the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PatternOp {
    /// Matches one character of a set.
    CharSet(usize),
    /// Matches as many characters of a set as possible, up to `max`, then fewer, down to `min`.
    Greedy {
        set: usize,
        min: usize,
        max: usize,
    },
    /// Matches `min` characters of a set, then more, up to `max`.
    Lazy {
        set: usize,
        min: usize,
        max: usize,
    },
    /// Tries `first` before `second`.
    Split {
        first: usize,
        second: usize,
    },
    Jump(usize),
    /// Succeeds if the operations up to `end` match from here on; consumes nothing.
    Ahead {
        is_wanted: bool,
        end: usize,
    },
    /// Succeeds if they match from `n_chars` before.
    Behind {
        is_wanted: bool,
        n_chars: usize,
        end: usize,
    },
    /// Consumes their first match; no other is tried.
    Atomic {
        end: usize,
    },
    Assert(Anchor),
    /// Ends a program, or the operations inside the three above.
    Accept,
}

/// A position in a text that an operation requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anchor {
    StartText,
    EndText,
    StartLine,
    EndLine,
    /// A boundary between a word character and another, or its absence. The set is that of word
    /// characters.
    WordBoundary {
        is_wanted: bool,
        set: usize,
    },
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// If its syntax is invalid, it is too large, or it uses a feature that published files do not
    /// use.
    pub(in crate::text) fn new(expression: &str) -> Result<Self, String> {
        if expression.len() > EXPRESSION_BYTES_MAX {
            return Err(format!(
                "an expression of {} bytes; the limit is {EXPRESSION_BYTES_MAX}",
                expression.len()
            ));
        }
        let tree = Expr::parse_tree(expression).map_err(|error| error.to_string())?;
        let mut compiler = PatternCompiler::default();
        compiler.emit(&tree.expr, 0)?;
        compiler.push(PatternOp::Accept)?;
        Ok(Self { ops: compiler.ops, sets: compiler.sets.into_vec() })
    }

    /// Compiles a pattern that matches a literal text.
    ///
    /// # Errors
    /// If the text is empty or too long.
    pub(in crate::text) fn literal(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a pattern without characters".to_owned());
        }
        Self::new(&fancy_regex::escape(text))
    }
}

/// Compiles a parsed expression into operations.
#[derive(Default)]
struct PatternCompiler {
    ops: Vec<PatternOp>,
    sets: CharSets,
    n_visits: usize,
}

impl PatternCompiler {
    fn push(&mut self, op: PatternOp) -> Result<usize, String> {
        if self.ops.len() >= OPS_MAX {
            return Err(format!("an expression of more than {OPS_MAX} operations"));
        }
        self.ops.push(op);
        Ok(self.ops.len() - 1)
    }

    fn emit(&mut self, expr: &Expr, depth: usize) -> Result<(), String> {
        self.n_visits += 1;
        if depth > DEPTH_MAX || self.n_visits > VISITS_MAX {
            return Err("an expression of too many repeated or nested parts".to_owned());
        }
        let depth = depth + 1;
        if let Some(set) = self.set_of(expr)? {
            self.push(PatternOp::CharSet(set))?;
            return Ok(());
        }
        match expr {
            Expr::Empty => Ok(()),
            Expr::Concat(parts) => parts.iter().try_for_each(|part| self.emit(part, depth)),
            Expr::Alt(branches) => self.emit_branches(branches, depth),
            Expr::Group(child) => self.emit(child, depth),
            Expr::Repeat { child, lo, hi, greedy } => {
                let repetition = Repetition { min: *lo, max: *hi, is_greedy: *greedy };
                self.emit_repeat(child, repetition, depth)
            }
            Expr::Literal { val, casei } => {
                for character in val.chars() {
                    let set = self.sets.character(character, *casei)?;
                    self.push(PatternOp::CharSet(set))?;
                }
                Ok(())
            }
            Expr::AtomicGroup(child) => {
                let op = self.push(PatternOp::Accept)?;
                self.emit(child, depth)?;
                let end = self.push(PatternOp::Accept)?;
                self.ops[op] = PatternOp::Atomic { end };
                Ok(())
            }
            Expr::LookAround(child, kind) => self.emit_look(child, *kind, depth),
            Expr::Assertion(assertion) => {
                let anchor = self.anchor(*assertion)?;
                self.push(PatternOp::Assert(anchor))?;
                Ok(())
            }
            _ => {
                Err("a reference, condition or reset inside an expression is not supported"
                    .to_owned())
            }
        }
    }

    fn emit_branches(&mut self, branches: &[Expr], depth: usize) -> Result<(), String> {
        let Some((last, others)) = branches.split_last() else { return Ok(()) };
        let mut jumps = Vec::new();
        for branch in others {
            let split = self.push(PatternOp::Accept)?;
            self.emit(branch, depth)?;
            jumps.push(self.push(PatternOp::Accept)?);
            self.ops[split] = PatternOp::Split { first: split + 1, second: self.ops.len() };
        }
        self.emit(last, depth)?;
        for jump in jumps {
            self.ops[jump] = PatternOp::Jump(self.ops.len());
        }
        Ok(())
    }

    fn emit_repeat(
        &mut self,
        child: &Expr,
        repetition: Repetition,
        depth: usize,
    ) -> Result<(), String> {
        let Repetition { min, max, is_greedy } = repetition;
        let is_bounded = max != usize::MAX;
        if min > REPEAT_MAX || is_bounded && max > REPEAT_MAX || min > max {
            return Err(format!("a repetition count above {REPEAT_MAX}, or an empty range"));
        }
        if let Some(set) = self.set_of(child)? {
            let op = match is_greedy {
                true => PatternOp::Greedy { set, min, max },
                false => PatternOp::Lazy { set, min, max },
            };
            self.push(op)?;
            return Ok(());
        }
        for _ in 0..min {
            self.emit(child, depth)?;
        }
        let mut splits = Vec::new();
        if is_bounded {
            for _ in min..max {
                splits.push(self.push(PatternOp::Accept)?);
                self.emit(child, depth)?;
            }
        } else {
            if least(child) == 0 {
                return Err(
                    "an unbounded repetition of a possibly empty expression is not supported"
                        .into(),
                );
            }
            splits.push(self.push(PatternOp::Accept)?);
            self.emit(child, depth)?;
            self.push(PatternOp::Jump(splits[0]))?;
        }
        let after = self.ops.len();
        for split in splits {
            let (inside, after) = (split + 1, after);
            self.ops[split] = match is_greedy {
                true => PatternOp::Split { first: inside, second: after },
                false => PatternOp::Split { first: after, second: inside },
            };
        }
        Ok(())
    }

    fn emit_look(&mut self, child: &Expr, kind: LookAround, depth: usize) -> Result<(), String> {
        let op = self.push(PatternOp::Accept)?;
        self.emit(child, depth)?;
        let end = self.push(PatternOp::Accept)?;
        let is_wanted = matches!(kind, LookAround::LookAhead | LookAround::LookBehind);
        self.ops[op] = match kind {
            LookAround::LookAhead | LookAround::LookAheadNeg => PatternOp::Ahead { is_wanted, end },
            LookAround::LookBehind | LookAround::LookBehindNeg => {
                let n_chars = exact(child)
                    .ok_or("lookbehind over a varying number of characters is not supported")?;
                PatternOp::Behind { is_wanted, n_chars, end }
            }
        };
        Ok(())
    }

    fn anchor(&mut self, assertion: Assertion) -> Result<Anchor, String> {
        let is_wanted = matches!(assertion, Assertion::WordBoundary);
        match assertion {
            Assertion::StartText => Ok(Anchor::StartText),
            Assertion::EndText => Ok(Anchor::EndText),
            Assertion::StartLine { crlf: false } => Ok(Anchor::StartLine),
            Assertion::EndLine { crlf: false } => Ok(Anchor::EndLine),
            Assertion::WordBoundary | Assertion::NotWordBoundary => {
                Ok(Anchor::WordBoundary { is_wanted, set: self.sets.class(r"\w", false)? })
            }
            _ => Err("this kind of word or line boundary is not supported".to_owned()),
        }
    }

    /// Returns the set of an expression that matches one character in any context.
    fn set_of(&mut self, expr: &Expr) -> Result<Option<usize>, String> {
        match expr {
            Expr::Any { newline: true } => self.sets.class("(?s:.)", false).map(Some),
            Expr::Any { newline: false } => self.sets.class(".", false).map(Some),
            Expr::Delegate { inner, casei, .. } => self.sets.class(inner, *casei).map(Some),
            Expr::Literal { val, casei } => {
                let mut characters = val.chars();
                match (characters.next(), characters.next()) {
                    (Some(one), None) => self.sets.character(one, *casei).map(Some),
                    _ => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }
}

/// The bounds of a repetition.
#[derive(Clone, Copy)]
struct Repetition {
    min: usize,
    max: usize,
    is_greedy: bool,
}

/// Returns the minimum number of characters that an expression matches.
fn least(expr: &Expr) -> usize {
    match expr {
        Expr::Any { .. } | Expr::Delegate { .. } => 1,
        Expr::Literal { val, .. } => val.chars().count(),
        Expr::Concat(parts) => parts.iter().map(least).fold(0, usize::saturating_add),
        Expr::Alt(branches) => branches.iter().map(least).min().unwrap_or(0),
        Expr::Group(child) | Expr::AtomicGroup(child) => least(child),
        Expr::Repeat { child, lo, .. } => least(child).saturating_mul(*lo),
        _ => 0,
    }
}

/// Returns the number of characters that an expression matches, if it is fixed.
fn exact(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Empty | Expr::Assertion(_) | Expr::LookAround(..) => Some(0),
        Expr::Any { .. } | Expr::Delegate { .. } => Some(1),
        Expr::Literal { val, .. } => Some(val.chars().count()),
        Expr::Concat(parts) => {
            parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(exact(part)?))
        }
        Expr::Alt(branches) => {
            let (first, others) = branches.split_first()?;
            let first = exact(first)?;
            others.iter().all(|branch| exact(branch) == Some(first)).then_some(first)
        }
        Expr::Group(child) | Expr::AtomicGroup(child) => exact(child),
        Expr::Repeat { child, lo, hi, .. } if lo == hi => exact(child)?.checked_mul(*lo),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
