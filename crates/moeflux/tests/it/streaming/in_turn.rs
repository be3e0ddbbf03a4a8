//! Dense models whose layers are read in turn. That they give the same bits with any number of
//! slots is tested with all other models.

use moeflux::provider::config::StreamingConfig;
use moeflux_testing::cases::{GoldenCase, feed_all};

use super::open;

/// Dense models in safetensors, in two quantisations of MLX, and in a GGUF file.
const CASES: [&str; 4] =
    ["qwen2-bf16", "mlx-llama-mixed_3_6-g32-bf16", "mlx-qwen3_5-q4-g32-bf16", "gguf-qwen3"];

#[test]
fn a_saved_session_does_not_depend_on_where_layers_are() {
    for name in CASES {
        let case = GoldenCase::load(name);
        let engines = [None, Some(1)];
        let engines = engines.map(|it| open(&case.dir, it, StreamingConfig::default()).unwrap());
        let [in_memory, streamed] = engines.each_ref().map(|it| it.stream_stats().is_some());
        assert_eq!((in_memory, streamed), (false, true), "{name}");
        assert_eq!(engines[0].fingerprint(), engines[1].fingerprint(), "{name}");
        let (first, rest) = case.tokens.split_at(8);
        let [from_memory, from_stream] = [[0, 1], [1, 0]].map(|[saving, resuming]| {
            let engine = |idx: usize| &engines[idx];
            let mut session = engine(saving).session(case.tokens.len()).unwrap();
            feed_all(&mut session, first);
            let mut saved = Vec::new();
            session.save_state(&mut saved).unwrap();
            let mut resumed = engine(resuming).session(case.tokens.len()).unwrap();
            resumed.load_state(&mut &saved[..]).unwrap();
            feed_all(&mut resumed, rest)
        });
        assert!(from_memory == from_stream, "{name}");
    }
}

#[test]
fn a_token_reads_the_layers_that_have_no_slot() {
    let case = GoldenCase::load("mlx-llama-mixed_3_6-g32-bf16");
    let stats_of = |n_slots: usize| {
        let engine = open(&case.dir, Some(n_slots), StreamingConfig::default()).unwrap();
        let mut session = engine.session(case.tokens.len()).unwrap();
        let mut feed = |n: usize| {
            let (from, before) = (session.tokens().len(), engine.stream_stats().unwrap());
            for token in &case.tokens[from..from + n] {
                feed_all(&mut session, std::slice::from_ref(token));
            }
            engine.stream_stats().unwrap().since(&before)
        };
        feed(2);
        feed(10)
    };
    let [one, three] = [1, 3].map(stats_of);
    for stats in [&one, &three] {
        assert!(stats.are_layers && stats.n_experts == 4, "{stats:?}");
        assert_eq!(stats.hits + stats.on_their_way + stats.misses, 40, "{stats:?}");
    }
    // Of four layers, three slots keep one, and the others pass through two.
    assert!(one.n_slots == 1 && three.n_slots == 3);
    let (few, all) = (three.read_bytes(), one.read_bytes());
    assert!(few > 0 && few * 10 < all * 8, "{few} bytes with three slots, {all} with one");
    assert_eq!(three.misses, 0, "what comes next is read before it is requested: {three:?}");
}
