//! The differential suite: every op, on every backend, against the reference.
//!
//! A case is a function of its maker and a seed: weights, shapes, sessions with a history. Every
//! backend must agree with the reference within a stated error. Its own results must be identical
//! for every division of the tokens into steps and all of its kernels, and must not depend on
//! earlier steps of other sessions. An [`OpSuite`] names the backends under test; `test_ops!` makes
//! its tests.

mod case;
mod attention;
mod delta;
mod experts;
mod linear;
mod blocks;
mod pointwise;
mod positions;
mod streams;
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
use case::OpCase;
use run::{CaseOutcome, CaseRun, Schedule, nmse, steps};

/// The backend that the others are compared with.
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

/// A backend and the requirements on it.
#[derive(Clone, Copy, Debug)]
pub struct BackendUnderTest {
    /// Its name in messages.
    pub name: &'static str,
    /// Makes it.
    pub make: MakeBackend,
    /// Largest normalised mean square error against the reference.
    pub limit: fn(ErrorSource) -> f64,
    /// Whether the same tokens in other steps must give the same bits of outputs, routes and
    /// states; else outputs may differ as much as from the reference, as on devices that sum in an
    /// order that depends on the shape.
    pub is_exact: bool,
    /// Whether it takes kernels of the CPU, all of which must give the same.
    pub has_tables: bool,
    /// The cases that it must run.
    pub covers: fn(&CaseMaker) -> bool,
    /// One of this number of cases is also run in other steps, saved, restored and reset: a case
    /// takes seconds on a driver that computes in software.
    pub steps_of_one_in: u64,
}

/// Makes a backend for a workspace and a number of rows, with these kernels if it takes any.
pub type MakeBackend =
    fn(Arc<Weights>, (&Workspace, usize), &'static KernelTable) -> Result<Box<dyn Backend>>;

/// Where the rounding error of an op comes from.
#[derive(Clone, Copy, Debug)]
pub enum ErrorSource {
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
fn limit_of_f32(error_source: ErrorSource) -> f64 {
    match error_source {
        ErrorSource::Copy => 0.0,
        // Up to some 15 roundings in a row, and `exp` turns an absolute error of its argument
        // (6e-8 times at most 10 in these cases) into a relative one.
        ErrorSource::Pointwise => 1e-12,
        // A plain f32 sum of n random terms has a mean square error of about n * 3e-16 of its
        // own square: 2.5e-12 measured at n = 7168, 2e-12 for the 512 equal terms of a softmax.
        // More where codes and biases cancel.
        ErrorSource::Sum => 2e-11,
        // Some sums in a row; scores enter `exp`, which magnifies their error. Plain f32 loops
        // measure 1e-13; a wrong term or a stale state is beyond 1e-6.
        ErrorSource::Chain => 1e-10,
    }
}

/// Makes cases of one kind.
#[derive(Debug)]
pub struct CaseMaker {
    /// The op under test, as [`moeflux::provider::ops::Op::name`] calls it.
    pub op: &'static str,
    /// The special property of the cases.
    pub what: &'static str,
    n_cases: u64,
    error_source: ErrorSource,
    make: fn(u64) -> OpCase,
}

impl CaseMaker {
    /// Every op that its cases run.
    pub fn op_names(&self) -> Vec<&'static str> {
        (self.make)(0).op_names()
    }
}

/// The backends that a program of tests compares with the reference.
pub trait OpSuite: 'static {
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
    /// Residual streams.
    Streams,
    /// Attention over keys and values or latents.
    Attention,
    /// Choices of positions, and attention over chosen positions.
    Positions,
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
    const ALL: [Self; 10] = [
        Self::Products,
        Self::Pointwise,
        Self::Streams,
        Self::Attention,
        Self::Positions,
        Self::Delta,
        Self::Routers,
        Self::Experts,
        Self::Blocks,
        Self::ExpertsInBlocks,
    ];

    fn makers<S: OpSuite>(self) -> &'static [CaseMaker] {
        match self {
            Self::Products => linear::MAKERS,
            Self::Pointwise => pointwise::MAKERS,
            Self::Streams => streams::MAKERS,
            Self::Attention => attention::MAKERS,
            Self::Positions => positions::MAKERS,
            Self::Delta => delta::MAKERS,
            Self::Routers => router::MAKERS,
            Self::Experts => experts::MAKERS,
            Self::Blocks => blocks::products::<S>(),
            Self::ExpertsInBlocks => blocks::experts_in_blocks::<S>(),
        }
    }

    /// Checks every case of the topic on every backend. All checks of one case run in a row,
    /// because devices compile kernels for each.
    pub fn check<S: OpSuite>(self) {
        for backend in S::BACKENDS {
            for_each_case(backend, self.makers::<S>().iter(), |id, case| {
                let expected = REFERENCE.run(case, Schedule::AtOnce);
                let outcome = backend.run(case, Schedule::Random(id.seed));
                let limit = (backend.limit)(id.maker.error_source);
                assert_close(id, "against the reference", &outcome, &expected, limit);
                if !id.seed.is_multiple_of(backend.steps_of_one_in) {
                    return;
                }
                backend.check_steps(id, case, &outcome);
                if !case.state.layers.is_empty() {
                    backend.check_state(id, case, &outcome);
                }
            });
        }
    }
}

/// The tests of an [`OpSuite`]: one for each topic, and one for the CPU's kernel tables.
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
        fn residual_streams() {
            $crate::ops::Topic::Streams.check::<$suite>();
        }

        #[test]
        fn attentions() {
            $crate::ops::Topic::Attention.check::<$suite>();
        }

        #[test]
        fn chosen_positions() {
            $crate::ops::Topic::Positions.check::<$suite>();
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

fn makers<S: OpSuite>() -> impl Iterator<Item = &'static CaseMaker> {
    Topic::ALL.into_iter().flat_map(Topic::makers::<S>)
}

/// A case on a backend, as messages name it: enough to run it again.
#[derive(Clone, Copy)]
struct CaseId {
    backend: &'static str,
    maker: &'static CaseMaker,
    seed: u64,
}

impl fmt::Display for CaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, maker: CaseMaker { op, what, .. }, seed } = self;
        write!(f, "op {op} ({what}), seed {seed}, backend {backend}")
    }
}

/// Calls `check` with every case of some makers.
fn for_each_case(
    backend: &BackendUnderTest,
    makers: impl Iterator<Item = &'static CaseMaker>,
    check: impl Fn(CaseId, &OpCase),
) {
    for maker in makers.filter(|maker| (backend.covers)(maker)) {
        for seed in seeds(maker.n_cases) {
            check(CaseId { backend: backend.name, maker, seed }, &(maker.make)(seed));
        }
    }
}

impl BackendUnderTest {
    fn backend(&self, case: &OpCase) -> Box<dyn Backend> {
        self.backend_by(moeflux_kernels::best(), case)
    }

    fn backend_by(&self, kernels: &'static KernelTable, case: &OpCase) -> Box<dyn Backend> {
        let workspace = (&case.workspace, case.n_tokens());
        let backend = (self.make)(Arc::clone(&case.weights), workspace, kernels);
        backend.expect("a small workspace")
    }

    fn run(&self, case: &OpCase, schedule: Schedule) -> CaseOutcome {
        CaseRun::whole(case, self.backend(case).as_mut(), schedule)
    }

    /// Checks that neither the division into steps nor an earlier session changes values.
    fn check_steps(&self, id: CaseId, case: &OpCase, expected: &CaseOutcome) {
        let one_by_one = self.run(case, Schedule::OneByOne);
        self.check_same(id, "one by one", &one_by_one, expected);
        let mut device = self.backend(case);
        for schedule in [Schedule::AtOnce, Schedule::Random(id.seed + 1)] {
            let outcome = CaseRun::whole(case, device.as_mut(), schedule);
            self.check_same(id, &format!("{schedule:?}, one device"), &outcome, expected);
        }
    }

    /// Checks that a session is as new after a reset, and that its saved state continues in another
    /// session.
    fn check_state(&self, id: CaseId, case: &OpCase, expected: &CaseOutcome) {
        let mut device = self.backend(case);
        let mut run = CaseRun::new(case, device.as_mut());
        let mut rng = Rng::new(id.seed);
        for spans in steps(case, Schedule::Random(id.seed)) {
            run.step(&spans);
            let session_idx = rng.below(case.sessions.len());
            let parts = run.save(session_idx);
            run.restore(session_idx, &parts);
        }
        self.check_same(id, "saved and restored", &run.finish(), expected);

        let mut run = CaseRun::new(case, device.as_mut());
        for spans in steps(case, Schedule::Random(id.seed)) {
            run.step(&spans);
        }
        run.reset();
        for spans in steps(case, Schedule::AtOnce) {
            run.step(&spans);
        }
        self.check_same(id, "after a reset", &run.finish(), expected);
    }

    /// Checks a second run of the same case on the same backend.
    fn check_same(&self, id: CaseId, how: &str, outcome: &CaseOutcome, expected: &CaseOutcome) {
        if !self.is_exact {
            let limit = (self.limit)(id.maker.error_source);
            return assert_close(id, how, outcome, expected, limit);
        }
        assert_close(id, how, outcome, expected, 0.0);
        let bits = |outcome: &CaseOutcome| -> Vec<u32> {
            let rows = outcome.values.values().flat_map(|rows| rows.values());
            rows.flatten().map(|value| value.to_bits()).collect()
        };
        assert!(bits(outcome) == bits(expected), "{id}: {how}: other bits");
        assert!(outcome.states == expected.states, "{id}: {how}: another state");
    }
}

fn assert_close(id: CaseId, how: &str, outcome: &CaseOutcome, expected: &CaseOutcome, limit: f64) {
    for (token, expected) in &expected.experts {
        let experts = &outcome.experts[token];
        assert!(experts == expected, "{id}: {how}: token {token}: {experts:?}, not {expected:?}");
    }
    let names = |outcome: &CaseOutcome| outcome.values.keys().cloned().collect::<Vec<String>>();
    assert_eq!(names(outcome), names(expected), "{id}: {how}");
    for (name, expected) in &expected.values {
        let rows = &outcome.values[name];
        assert!(rows.keys().eq(expected.keys()), "{id}: {how}: other rows of {name}");
        let error = nmse(rows.values().flatten(), expected.values().flatten());
        let worst = || worst_of(rows.values().flatten(), expected.values().flatten());
        assert!(error <= limit, "{id}: {how}: {name}: NMSE {error:e} > {limit:e}; {}", worst());
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
pub fn check_tables<S: OpSuite>() {
    for backend in S::BACKENDS.iter().filter(|it| it.has_tables) {
        for_each_case(backend, makers::<S>(), |id, case| {
            let expected = backend.run(case, Schedule::AtOnce);
            for table in other_tables() {
                let mut device = backend.backend_by(table, case);
                assert_eq!(device.names().isa, table.name());
                // Some steps are large: rows go by in panels.
                let is_whole = id.seed.is_multiple_of(2);
                let schedule = if is_whole { Schedule::AtOnce } else { Schedule::Random(id.seed) };
                let outcome = CaseRun::whole(case, device.as_mut(), schedule);
                backend.check_same(id, table.name(), &outcome, &expected);
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

    impl OpSuite for Every {
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
        let is_stateful = |case: &OpCase| !case.state.layers.is_empty();
        let cases = || makers::<Every>().flat_map(|maker| (0..maker.n_cases).map(maker.make));
        let n_with = |what: &dyn Fn(&OpCase) -> bool| cases().filter(|case| what(case)).count();
        assert!(n_with(&|case| is_stateful(case) && case.sessions.len() > 1) >= 20);
        assert!(n_with(&|case| is_stateful(case) && case.n_tokens() > 256) >= 2);
        let has_kind =
            |case: &OpCase, wanted: fn(&LayerState) -> bool| case.state.layers.iter().any(wanted);
        assert!(n_with(&|case| has_kind(case, |it| matches!(it, LayerState::Latent { .. }))) > 4);
    }

    #[test]
    fn the_measure_detects_differences() {
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
