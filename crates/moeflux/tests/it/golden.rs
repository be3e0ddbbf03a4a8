//! Golden cases: logits of every family and weight format against transformers and mlx-lm.

use moeflux::engine::BackendKind;

use crate::support::{Case, Distance, case_names, feed_all, open, open_with};

/// Runs every case on a backend and names those that are too far off.
fn check_all(backend: BackendKind) {
    let mut failures = Vec::new();
    for name in case_names() {
        let case = Case::load(&name);
        let engine = open(&case.dir, backend, 64);
        let mut session = engine.session(case.tokens.len()).unwrap();
        let distance = Distance::between(&feed_all(&mut session, &case.tokens), &case.logits);
        println!("{name:40} {backend:?} {distance:?}");
        if let Some(excess) = distance.beyond_f32_limits() {
            failures.push(format!("{name}: {excess}"));
        }
    }
    assert!(failures.is_empty(), "{backend:?} differs:\n{}", failures.join("\n"));
}

#[test]
fn reference_agrees_with_other_implementations() {
    check_all(BackendKind::Reference);
}

#[test]
fn cpu_agrees_with_other_implementations() {
    check_all(BackendKind::Cpu);
}

#[test]
fn the_model_in_the_box_agrees_with_transformers_on_both_backends() {
    let (case, every) = Case::demo();
    for backend in [BackendKind::Reference, BackendKind::Cpu] {
        let engine = open(&case.dir, backend, 64);
        let mut session = engine.session(case.tokens.len()).unwrap();
        let all = feed_all(&mut session, &case.tokens);
        let rows: Vec<Vec<f32>> = all.into_iter().skip(every - 1).step_by(every).collect();
        let distance = Distance::between(&rows, &case.logits);
        println!("{backend:?} {distance:?}");
        assert_eq!(distance.beyond_f32_limits(), None, "{backend:?}");
    }
}

#[test]
fn cpu_gives_the_same_bits_for_any_chunk_and_any_number_of_threads() {
    for name in case_names() {
        let case = Case::load(&name);
        let tokens = &case.tokens[..case.tokens.len().min(80)];
        let run = |n_rows_max, n_threads| {
            let engine = open_with(&case.dir, BackendKind::Cpu, (n_rows_max, n_threads)).unwrap();
            feed_all(&mut engine.session(tokens.len()).unwrap(), tokens)
        };
        let whole = run(tokens.len(), 1);
        for (n_rows_max, n_threads) in [(1, 2), (7, 1), (7, 3), (tokens.len(), 2)] {
            let other = run(n_rows_max, n_threads);
            assert!(
                whole == other,
                "{name}: {n_rows_max} rows per step on {n_threads} threads change the bits"
            );
        }
    }
}
