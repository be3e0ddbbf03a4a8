//! The differential suite: every op, on every backend, against the reference.
//!
//! A case is a function of its maker and a seed: weights, shapes, sessions with a history. Every
//! backend must agree with the reference within a stated error, with itself exactly however the
//! tokens are cut into steps and whichever kernels it takes, and must not remember what it should
//! not. A [`Suite`] names the backends under test; `test_ops!` makes its tests.

mod case;
mod attention;
mod delta;
mod experts;
mod linear;
mod blocks;
mod pointwise;
mod router;
mod run;

use std::fmt;
use std::sync::Arc;

use moeflux::provider::backend::Backend;
use moeflux::provider::backend::reference::ReferenceBackend;
use moeflux::provider::error::Result;
use moeflux::provider::ops::Workspace;
use moeflux::provider::weights::Weights;
use moeflux_kernels::{BlockKind, KernelTable};

use crate::random::{Rng, seeds};
use case::Case;
use run::{Outcome, Run, Schedule, nmse, steps};

/// What the others are compared with.
pub const REFERENCE: BackendUnderTest = BackendUnderTest {
    name: "reference",
    make: |weights, (workspace, n_rows_max), _| {
        Ok(Box::new(ReferenceBackend::new(weights, workspace, n_rows_max)?))
    },
    limit: limit_of_f32,
    is_exact: true,
    has_tables: false,
    covers: |_| true,
    steps_of_one_in: 1,
};

/// A backend and what is asked of it.
#[derive(Clone, Copy, Debug)]
pub struct BackendUnderTest {
    /// Its name in messages.
    pub name: &'static str,
    /// Makes it.
    pub make: Make,
    /// Largest normalised mean square error against the reference.
    pub limit: fn(Arithmetic) -> f64,
    /// Whether the same tokens in other steps must give the same bits of outputs, routes and
    /// states; else outputs may differ as much as from the reference, as on devices that sum in an
    /// order that depends on the shape.
    pub is_exact: bool,
    /// Whether it takes kernels of the CPU, all of which must give the same.
    pub has_tables: bool,
    /// Which cases it is asked to run.
    pub covers: fn(&Maker) -> bool,
    /// Of so many cases one is also run in other steps, saved, restored and reset: a case takes
    /// seconds on a driver that computes in software.
    pub steps_of_one_in: u64,
}

/// How a backend is made: for a workspace and so many rows, by these kernels if it takes any.
pub type Make =
    fn(Arc<Weights>, (&Workspace, usize), &'static KernelTable) -> Result<Box<dyn Backend>>;

/// What an op's error comes from.
#[derive(Clone, Copy, Debug)]
pub enum Arithmetic {
    /// Values are copied, or are sums of two values: one rounding, the same everywhere.
    Copy,
    /// Values go through a few operations and functions.
    Pointwise,
    /// Values are sums of many products.
    Sum,
    /// Sums feed functions that feed sums: whole chains, or a state that carries its error on.
    Chain,
}

/// For arithmetic in f32 with functions that are good to a few units in the last place. One
/// rounding has a relative error of at most 6e-8, squared 3.6e-15.
fn limit_of_f32(arithmetic: Arithmetic) -> f64 {
    match arithmetic {
        Arithmetic::Copy => 0.0,
        // Up to some 15 roundings in a row, and `exp` turns an absolute error of its argument
        // (6e-8 times at most 10 in these cases) into a relative one.
        Arithmetic::Pointwise => 1e-12,
        // A plain f32 sum of n random terms has a mean square error of about n * 3e-16 of its
        // own square: 2.5e-12 measured at n = 7168, 2e-12 for the 512 equal terms of a softmax.
        // More where codes and biases cancel.
        Arithmetic::Sum => 2e-11,
        // Some sums in a row; scores enter `exp`, which magnifies their error. Plain f32 loops
        // measure 1e-13; a wrong term or a stale state is beyond 1e-6.
        Arithmetic::Chain => 1e-10,
    }
}

/// Makes cases of one kind.
#[derive(Debug)]
pub struct Maker {
    /// The op under test, as [`moeflux::provider::ops::Op::name`] calls it.
    pub op: &'static str,
    /// What is special about the cases.
    pub what: &'static str,
    n_cases: u64,
    arithmetic: Arithmetic,
    make: fn(u64) -> Case,
}

impl Maker {
    /// Every op that its cases run.
    pub fn op_names(&self) -> Vec<&'static str> {
        (self.make)(0).op_names()
    }
}

/// The backends that a program of tests compares with the reference.
pub trait Suite: 'static {
    /// The backends.
    const BACKENDS: &'static [BackendUnderTest];
    /// The kinds of blocks that all of them read.
    const BLOCK_KINDS: &'static [BlockKind];
}

/// A group of ops.
#[derive(Clone, Copy, Debug)]
pub enum Topic {
    /// Products with weights, and rows of tables.
    Products,
    /// Element by element, and norms.
    Pointwise,
    /// Attention over keys and values or latents.
    Attention,
    /// Gated delta rules.
    Delta,
    /// Choices of experts.
    Routers,
    /// Products with experts.
    Experts,
    /// Products with blocks that carry their own scales, as GGUF files have them.
    Blocks,
    /// Experts in such blocks.
    ExpertsInBlocks,
}

impl Topic {
    const ALL: [Self; 8] = [
        Self::Products,
        Self::Pointwise,
        Self::Attention,
        Self::Delta,
        Self::Routers,
        Self::Experts,
        Self::Blocks,
        Self::ExpertsInBlocks,
    ];

    fn makers<S: Suite>(self) -> &'static [Maker] {
        match self {
            Self::Products => linear::MAKERS,
            Self::Pointwise => pointwise::MAKERS,
            Self::Attention => attention::MAKERS,
            Self::Delta => delta::MAKERS,
            Self::Routers => router::MAKERS,
            Self::Experts => experts::MAKERS,
            Self::Blocks => blocks::products::<S>(),
            Self::ExpertsInBlocks => blocks::experts_in_blocks::<S>(),
        }
    }

    /// Checks every case of the topic on every backend. All checks of one case run in a row,
    /// because devices compile kernels for each.
    pub fn check<S: Suite>(self) {
        for backend in S::BACKENDS {
            for_each_case(backend, self.makers::<S>().iter(), |which, case| {
                let expected = REFERENCE.run(case, Schedule::AtOnce);
                let outcome = backend.run(case, Schedule::Random(which.seed));
                let limit = (backend.limit)(which.maker.arithmetic);
                assert_close(which, "against the reference", &outcome, &expected, limit);
                if !which.seed.is_multiple_of(backend.steps_of_one_in) {
                    return;
                }
                backend.check_steps(which, case, &outcome);
                if !case.state.layers.is_empty() {
                    backend.check_state(which, case, &outcome);
                }
            });
        }
    }
}

/// The tests of a [`Suite`]: one for each topic, and one for the CPU's kernel tables.
#[macro_export]
macro_rules! test_ops {
    ($suite:ty) => {
        #[test]
        fn products() {
            $crate::ops::Topic::Products.check::<$suite>();
        }

        #[test]
        fn values_and_norms() {
            $crate::ops::Topic::Pointwise.check::<$suite>();
        }

        #[test]
        fn attentions() {
            $crate::ops::Topic::Attention.check::<$suite>();
        }

        #[test]
        fn delta_rules() {
            $crate::ops::Topic::Delta.check::<$suite>();
        }

        #[test]
        fn routers() {
            $crate::ops::Topic::Routers.check::<$suite>();
        }

        #[test]
        fn routed_experts() {
            $crate::ops::Topic::Experts.check::<$suite>();
        }

        #[test]
        fn products_with_blocks() {
            $crate::ops::Topic::Blocks.check::<$suite>();
        }

        #[test]
        fn experts_in_blocks() {
            $crate::ops::Topic::ExpertsInBlocks.check::<$suite>();
        }

        #[test]
        fn every_table_gives_the_bits_of_the_best() {
            $crate::ops::check_tables::<$suite>();
        }
    };
}

fn makers<S: Suite>() -> impl Iterator<Item = &'static Maker> {
    Topic::ALL.into_iter().flat_map(Topic::makers::<S>)
}

/// Says which case failed, and how to see it again.
#[derive(Clone, Copy)]
struct Which {
    backend: &'static str,
    maker: &'static Maker,
    seed: u64,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, maker: Maker { op, what, .. }, seed } = self;
        write!(f, "op {op} ({what}), seed {seed}, backend {backend}")
    }
}

/// Calls `check` with every case of some makers.
fn for_each_case(
    backend: &BackendUnderTest,
    makers: impl Iterator<Item = &'static Maker>,
    check: impl Fn(Which, &Case),
) {
    for maker in makers.filter(|maker| (backend.covers)(maker)) {
        for seed in seeds(maker.n_cases) {
            check(Which { backend: backend.name, maker, seed }, &(maker.make)(seed));
        }
    }
}

impl BackendUnderTest {
    fn backend(&self, case: &Case) -> Box<dyn Backend> {
        self.backend_by(moeflux_kernels::best(), case)
    }

    fn backend_by(&self, kernels: &'static KernelTable, case: &Case) -> Box<dyn Backend> {
        let workspace = (&case.workspace, case.n_tokens());
        let backend = (self.make)(Arc::clone(&case.weights), workspace, kernels);
        backend.expect("a small workspace")
    }

    fn run(&self, case: &Case, schedule: Schedule) -> Outcome {
        Run::whole(case, self.backend(case).as_mut(), schedule)
    }

    /// Steps do not change values, nor does a session that was there before.
    fn check_steps(&self, which: Which, case: &Case, expected: &Outcome) {
        let one_by_one = self.run(case, Schedule::OneByOne);
        self.check_same(which, "one by one", &one_by_one, expected);
        let mut device = self.backend(case);
        for schedule in [Schedule::AtOnce, Schedule::Random(which.seed + 1)] {
            let outcome = Run::whole(case, device.as_mut(), schedule);
            self.check_same(which, &format!("{schedule:?}, one device"), &outcome, expected);
        }
    }

    /// A session is fresh after a reset, and what was saved of it continues in another one.
    fn check_state(&self, which: Which, case: &Case, expected: &Outcome) {
        let mut device = self.backend(case);
        let mut run = Run::new(case, device.as_mut());
        let mut rng = Rng::new(which.seed);
        for pieces in steps(case, Schedule::Random(which.seed)) {
            run.step(&pieces);
            let session_idx = rng.below(case.sessions.len());
            let parts = run.save(session_idx);
            run.restore(session_idx, &parts);
        }
        self.check_same(which, "saved and restored", &run.finish(), expected);

        let mut run = Run::new(case, device.as_mut());
        for pieces in steps(case, Schedule::Random(which.seed)) {
            run.step(&pieces);
        }
        run.reset();
        for pieces in steps(case, Schedule::AtOnce) {
            run.step(&pieces);
        }
        self.check_same(which, "after a reset", &run.finish(), expected);
    }

    /// Checks a second run of the same case on the same backend.
    fn check_same(&self, which: Which, how: &str, outcome: &Outcome, expected: &Outcome) {
        if !self.is_exact {
            let limit = (self.limit)(which.maker.arithmetic);
            return assert_close(which, how, outcome, expected, limit);
        }
        assert_close(which, how, outcome, expected, 0.0);
        let bits = |outcome: &Outcome| -> Vec<u32> {
            let rows = outcome.values.values().flat_map(|rows| rows.values());
            rows.flatten().map(|value| value.to_bits()).collect()
        };
        assert!(bits(outcome) == bits(expected), "{which}: {how}: other bits");
        assert!(outcome.states == expected.states, "{which}: {how}: another state");
    }
}

fn assert_close(which: Which, how: &str, outcome: &Outcome, expected: &Outcome, limit: f64) {
    for (token, expected) in &expected.experts {
        let experts = &outcome.experts[token];
        assert!(
            experts == expected,
            "{which}: {how}: token {token}: {experts:?}, not {expected:?}"
        );
    }
    let names = |outcome: &Outcome| outcome.values.keys().cloned().collect::<Vec<String>>();
    assert_eq!(names(outcome), names(expected), "{which}: {how}");
    for (name, expected) in &expected.values {
        let rows = &outcome.values[name];
        assert!(rows.keys().eq(expected.keys()), "{which}: {how}: other rows of {name}");
        let error = nmse(rows.values().flatten(), expected.values().flatten());
        let worst = || worst_of(rows.values().flatten(), expected.values().flatten());
        assert!(error <= limit, "{which}: {how}: {name}: NMSE {error:e} > {limit:e}; {}", worst());
    }
}

/// The largest difference, in words.
fn worst_of<'a>(
    values: impl Iterator<Item = &'a f32>,
    expected: impl Iterator<Item = &'a f32>,
) -> String {
    let difference = |(value, expected): (&f32, &f32)| f64::from((value - expected).abs());
    let pairs = values.zip(expected).enumerate();
    let worst = pairs.max_by(|x, y| difference(x.1).total_cmp(&difference(y.1)));
    worst.map_or_else(String::new, |(at, (value, expected))| {
        format!("largest difference at value {at}: {value:e}, not {expected:e}")
    })
}

/// All tables but the best, which the other tests take: those of this CPU, and those of units that
/// it may lack, done by other means.
fn other_tables() -> impl Iterator<Item = &'static KernelTable> {
    let best = moeflux_kernels::best().name();
    let tables = moeflux_kernels::available().into_iter().chain(moeflux_kernels::emulated());
    tables.filter(move |table| table.name() != best)
}

/// Checks that all kernel tables give the bits of the best one.
pub fn check_tables<S: Suite>() {
    for backend in S::BACKENDS.iter().filter(|it| it.has_tables) {
        for_each_case(backend, makers::<S>(), |which, case| {
            let expected = backend.run(case, Schedule::AtOnce);
            for table in other_tables() {
                let mut device = backend.backend_by(table, case);
                assert_eq!(device.names().isa, table.name());
                // Some steps are large: rows go by in panels.
                let is_whole = which.seed.is_multiple_of(2);
                let schedule =
                    if is_whole { Schedule::AtOnce } else { Schedule::Random(which.seed) };
                let outcome = Run::whole(case, device.as_mut(), schedule);
                backend.check_same(which, table.name(), &outcome, &expected);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use moeflux::provider::ops::LayerState;

    use super::*;

    struct Every;

    impl Suite for Every {
        const BACKENDS: &'static [BackendUnderTest] = &[REFERENCE];
        const BLOCK_KINDS: &'static [BlockKind] = &BlockKind::ALL;
    }

    #[test]
    fn every_op_has_a_case() {
        let covered: BTreeSet<&str> = makers::<Every>().map(|maker| maker.op).collect();
        let source = include_str!("../../../moeflux/src/ops/mod.rs");
        // The arms of `Op::name`: `Self::MatMul(_) => "matmul",`.
        let arms = source.lines().filter(|line| line.contains("(_) => \""));
        let names: BTreeSet<&str> = arms.filter_map(|line| line.split('"').nth(1)).collect();
        assert!(names.len() >= 17, "the arms of Op::name were found: {names:?}");
        assert_eq!(covered, names, "makers on the left, ops on the right");
        for maker in makers::<Every>() {
            let ops = maker.op_names();
            assert!(ops.contains(&maker.op), "{} ({}) runs {ops:?}", maker.op, maker.what);
        }
    }

    #[test]
    fn cases_have_history_and_company() {
        let is_stateful = |case: &Case| !case.state.layers.is_empty();
        let cases = || makers::<Every>().flat_map(|maker| (0..maker.n_cases).map(maker.make));
        let n_with = |what: &dyn Fn(&Case) -> bool| cases().filter(|case| what(case)).count();
        assert!(n_with(&|case| is_stateful(case) && case.sessions.len() > 1) >= 20);
        assert!(n_with(&|case| is_stateful(case) && case.n_tokens() > 256) >= 2);
        let has_kind =
            |case: &Case, wanted: fn(&LayerState) -> bool| case.state.layers.iter().any(wanted);
        assert!(n_with(&|case| has_kind(case, |it| matches!(it, LayerState::Latent { .. }))) > 4);
    }

    #[test]
    fn the_measure_sees_what_differs() {
        let error = |values: &[f32], expected: &[f32]| nmse(values.iter(), expected.iter());
        let same = error(&[1.0, f32::INFINITY, f32::NAN], &[1.0, f32::INFINITY, f32::NAN]);
        assert!(same <= 0.0, "equal values differ by {same}");
        assert!((error(&[3.0, 4.5], &[3.0, 4.0]) - 0.01).abs() < 1e-12);
        for (value, expected) in [
            (f32::NAN, 1.0),
            (1.0, f32::NAN),
            (f32::INFINITY, 1.0),
            (1.0, f32::INFINITY),
            (1.0, 0.0),
        ] {
            let error = error(&[value], &[expected]);
            let is_small = error <= 1e9;
            assert!(!is_small, "{value} for {expected}: {error}");
        }
    }
}
