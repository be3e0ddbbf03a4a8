//! Guesses of known quality: which ranks are kept, and when lookahead stops.

use super::*;

const SHAPE: LookAheadShape = LookAheadShape { n_layers: 3, n_experts_max: 16, n_ranks: 4 };

fn experts(indices: &[usize]) -> Vec<ExpertIdx> {
    indices.iter().copied().map(ExpertIdx).collect()
}

/// Returns the cost of a step with this many right and wasted guesses.
fn cost(n_ready: u64, n_wasted: u64) -> StepCost {
    let times = StepCost { record_ns: 1000, wait_ns: 5000, step_ns: 10_000, ..StepCost::default() };
    StepCost { n_ready, n_wasted, ..times }
}

fn end_steps(look: &mut LookAhead, n_steps: u32, cost: &StepCost) {
    (0..n_steps).for_each(|_| look.end_step(cost));
}

#[test]
fn names_are_given_by_rank_over_all_rows_and_once() {
    let mut look = LookAhead::new(SHAPE);
    let mut likely = experts(&[9]);
    look.choose(
        (LayerIdx(1), GuessStage::Late),
        &experts(&[3, 1, 4, 5, 2, 3, 6, 1]),
        &|_| true,
        &mut likely,
    );
    assert_eq!(likely, experts(&[3, 2, 1, 4, 6, 5]));
    look.choose((LayerIdx(1), GuessStage::Late), &[], &|_| true, &mut likely);
    assert!(likely.is_empty());
}

#[test]
fn a_rank_is_dropped_while_it_is_seldom_right() {
    let mut look = LookAhead::new(SHAPE);
    let ranked = experts(&[0, 1, 2, 3]);
    let mut likely = Vec::new();
    let mut ask = |look: &mut LookAhead, demanded: &[usize], n_times: usize| {
        for _ in 0..n_times {
            look.choose((LayerIdx(2), GuessStage::Late), &ranked, &|_| true, &mut likely);
            look.demanded(LayerIdx(2), &experts(demanded));
        }
        look.choose((LayerIdx(2), GuessStage::Late), &ranked, &|_| true, &mut likely);
        likely.clone()
    };
    assert_eq!(ask(&mut look, &[0, 1, 9], 100), experts(&[0, 1]));
    assert_eq!(ask(&mut look, &[0, 3], 100), experts(&[0, 3]));
    // Other layers have their own precision.
    look.choose((LayerIdx(1), GuessStage::Late), &ranked, &|_| true, &mut likely);
    assert_eq!(likely, ranked);
}

#[test]
fn each_stage_has_a_record_of_its_own() {
    let mut look = LookAhead::new(SHAPE);
    let (layer, mut likely) = (LayerIdx(1), Vec::new());
    for _ in 0..100 {
        look.choose((layer, GuessStage::Early), &experts(&[0, 1, 2, 3]), &|_| true, &mut likely);
        look.choose((layer, GuessStage::Late), &experts(&[0, 4, 5, 6]), &|_| true, &mut likely);
        look.demanded(layer, &experts(&[0, 4, 5]));
    }
    look.choose((layer, GuessStage::Early), &experts(&[7, 8, 9, 10]), &|_| true, &mut likely);
    assert_eq!(likely, experts(&[7]));
    look.choose((layer, GuessStage::Late), &experts(&[7, 8, 9, 10]), &|_| true, &mut likely);
    assert_eq!(likely, experts(&[7, 8, 9]));
}

#[test]
fn experts_in_memory_teach_nothing_about_reads() {
    let mut look = LookAhead::new(SHAPE);
    let ranked = experts(&[0, 1, 2, 3]);
    let mut likely = Vec::new();
    for _ in 0..200 {
        // Ranks 0 and 1 are always requested and always in memory; reads of 2 and 3 are wasted.
        look.choose((LayerIdx(0), GuessStage::Late), &ranked, &|expert| expert.0 > 1, &mut likely);
        look.demanded(LayerIdx(0), &experts(&[0, 1]));
    }
    assert_eq!(likely, experts(&[0, 1]));
    look.choose((LayerIdx(0), GuessStage::Late), &experts(&[5, 6, 7, 8]), &|_| true, &mut likely);
    assert_eq!(likely, experts(&[5, 6]), "not yet known to be worth less");
}

#[test]
fn an_idle_drive_reads_less_likely_guesses() {
    let ranked = experts(&[0, 1, 2, 3]);
    for (wait_ns, expected) in [(10_000, &[0, 1][..]), (0, &[0, 1, 2])] {
        let mut look = LookAhead::new(SHAPE);
        let mut likely = Vec::new();
        for round in 0..400 {
            look.choose((LayerIdx(0), GuessStage::Late), &ranked, &|_| true, &mut likely);
            // Rank 2 is right every third time, rank 3 never.
            let demanded = if round % 3 == 0 { experts(&[0, 1, 2]) } else { experts(&[0, 1]) };
            look.demanded(LayerIdx(0), &demanded);
            look.end_step(&StepCost { wait_ns, ..cost(1, 0) });
        }
        look.choose((LayerIdx(0), GuessStage::Late), &ranked, &|_| true, &mut likely);
        assert_eq!(likely, experts(expected), "wait {wait_ns}");
    }
}

#[test]
fn recall_and_precision_are_those_of_the_last_window() {
    let mut look = LookAhead::new(SHAPE);
    assert_eq!((look.quality().recall(), look.quality().precision()), (None, None));
    let mut likely = Vec::new();
    for _ in 0..WINDOW_STEPS {
        look.choose(
            (LayerIdx(1), GuessStage::Late),
            &experts(&[0, 1, 2, 3]),
            &|_| true,
            &mut likely,
        );
        look.demanded(LayerIdx(1), &experts(&[0, 5]));
        // A layer without a guess does not count.
        look.demanded(LayerIdx(2), &experts(&[0, 5]));
        look.end_step(&cost(1, 0));
    }
    let quality = look.quality();
    assert_eq!(quality.recall(), Some(0.5));
    assert_eq!(quality.n_right, u64::from(WINDOW_STEPS));
    // Three ranks are dropped once they were wrong often enough.
    assert!(quality.n_named < 4 * u64::from(WINDOW_STEPS));
    assert!(quality.precision().unwrap() > 0.25);
}

#[test]
fn lookahead_without_gain_pauses_ever_longer() {
    let mut look = LookAhead::new(SHAPE);
    // Three right guesses save 3 records; 7 wrong ones cost half of their time.
    let (good, bad) = (cost(3, 4), cost(3, 7));
    end_steps(&mut look, 10 * WINDOW_STEPS, &good);
    assert!(look.is_on() && look.n_ranks() == 4);
    let mut pause_steps = PAUSE_STEPS_MIN;
    for _ in 0..10 {
        end_steps(&mut look, WINDOW_STEPS, &bad);
        assert_eq!(look.n_ranks(), 0);
        end_steps(&mut look, pause_steps - 1, &StepCost::default());
        assert!(!look.is_on());
        end_steps(&mut look, 1, &StepCost::default());
        assert!(look.is_on());
        pause_steps = (2 * pause_steps).min(PAUSE_STEPS_MAX);
    }
    // After one good window, the next pause is short again.
    end_steps(&mut look, WINDOW_STEPS, &good);
    end_steps(&mut look, WINDOW_STEPS, &bad);
    end_steps(&mut look, PAUSE_STEPS_MIN, &StepCost::default());
    assert!(look.is_on());
}

#[test]
fn no_guesses_and_delayed_demands_are_not_a_gain() {
    let delayed = StepCost { delay_ns: 3000, ..cost(3, 0) };
    for (cost, is_gain) in [
        (cost(0, 0), false),
        (delayed, false),
        (StepCost { ask_ns: 1, delay_ns: 2999, ..delayed }, false),
        (StepCost { delay_ns: 2999, ..delayed }, true),
        (StepCost { n_on_their_way: 1, ..cost(0, 0) }, true),
        (StepCost { wait_ns: 0, ..cost(1, 1000) }, true),
        (StepCost { wait_ns: u64::MAX, step_ns: 0, ..cost(u64::MAX, u64::MAX) }, true),
    ] {
        let mut look = LookAhead::new(SHAPE);
        end_steps(&mut look, WINDOW_STEPS, &cost);
        assert_eq!(look.is_on(), is_gain, "{cost:?}");
    }
}
