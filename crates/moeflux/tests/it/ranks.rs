//! One model over several ranks: the bits of one, and one clear error when something goes wrong.

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::error::{Error, Result};
use moeflux::provider::forward::Logits;
use moeflux::provider::ids::TokenId;
use moeflux::provider::kernels::available;
use moeflux::provider::model::Model;
use moeflux::provider::ranks::{LocalRanks, LocalSettings, RankFault, RankGroup};
use moeflux::provider::session::{Feed, Session, StepOutput, Wanted, step};
use moeflux::provider::weights::Shares;
use moeflux_testing::cases::{GoldenCase, case_names, try_feed_all};
use moeflux_testing::random::{Rng, seeds};
use moeflux_testing::temp_dir::TempDir;

use crate::support::config;

type Bits = Vec<Vec<u32>>;

fn open(dir: &Path, config: &EngineConfig) -> Result<Engine> {
    let model = Model::open(dir).map_err(|error| match &config.ranks {
        Some(group) => group.refuse(error).unwrap_err(),
        None => error,
    })?;
    Engine::load(model, config, &mut |_| ControlFlow::Continue(()))
}

/// Runs `work` on rank 0. Returns its result, and the outcomes of all ranks.
fn job<R>(
    (dir, shares): (&Path, &Shares),
    config_of: &(dyn Fn(usize) -> EngineConfig + Sync),
    conditions: (LocalSettings, &[(usize, u64, RankFault)]),
    work: impl FnOnce(&Engine) -> Result<R>,
) -> (Result<R>, Vec<Result<()>>) {
    job_in((&|_| dir.to_owned(), shares), config_of, conditions, work)
}

/// The same where each rank has its own folder.
fn job_in<R>(
    (dir_of, shares): (&(dyn Fn(usize) -> PathBuf + Sync), &Shares),
    config_of: &(dyn Fn(usize) -> EngineConfig + Sync),
    (settings, faults): (LocalSettings, &[(usize, u64, RankFault)]),
    work: impl FnOnce(&Engine) -> Result<R>,
) -> (Result<R>, Vec<Result<()>>) {
    let mut ranks = LocalRanks::job(shares.n_ranks(), settings, faults).into_iter();
    let first = ranks.next().unwrap();
    let opened = |rank: usize, ranks: LocalRanks| {
        let group = RankGroup::new(Box::new(ranks), shares.clone()).unwrap();
        let config = EngineConfig { ranks: Some(group), ..config_of(rank) };
        open(&dir_of(rank), &config)
    };
    thread::scope(|scope| {
        let others = ranks.enumerate().map(|(idx, ranks)| {
            scope.spawn(move || opened(idx + 1, ranks).and_then(|engine| engine.follow()))
        });
        let others: Vec<_> = others.collect();
        let done = opened(0, first).and_then(|engine| work(&engine));
        (done, others.into_iter().map(|it| it.join().expect("no rank panics")).collect())
    })
}

fn bits(rows: Vec<Vec<f32>>) -> Bits {
    rows.into_iter().map(|row| row.into_iter().map(f32::to_bits).collect()).collect()
}

/// The logits of all tokens: the first half as a prompt, the others as an answer.
fn logits(engine: &Engine, tokens: &[TokenId]) -> Result<Bits> {
    let mut session = engine.session(tokens.len())?;
    let (prompt, answer) = tokens.split_at(tokens.len() / 2);
    let mut rows = try_feed_all(&mut session, prompt)?;
    for token in answer {
        rows.extend(answer_logits(&mut session, *token)?);
    }
    Ok(bits(rows))
}

/// The logits after one token of an answer.
fn answer_logits(session: &mut Session, token: TokenId) -> Result<Vec<Vec<f32>>> {
    let mut feeds = [Feed::answer(session, &token).wanting(Wanted::Last)];
    let mut output = StepOutput::default();
    step(&mut feeds, &mut output)?;
    let rows: Vec<Vec<f32>> = output.iter().map(|(_, row)| all_of(row)).collect();
    feeds[0].outcome()?;
    Ok(rows)
}

fn with_slots(config: EngineConfig, n_slots: Option<usize>) -> EngineConfig {
    let streaming = StreamingConfig { n_slots_max: n_slots, ..StreamingConfig::default() };
    EngineConfig { streaming, ..config }
}

const QUIET: (LocalSettings, &[(usize, u64, RankFault)]) = (
    LocalSettings {
        delay: Duration::from_micros(50),
        nanos_per_byte: 1,
        deadline: Duration::from_secs(30),
    },
    &[],
);

#[test]
fn all_goldens_have_the_bits_of_one_process() {
    let (mut n_divided, mut n_refused) = (0, 0);
    for (idx, name) in case_names().iter().enumerate() {
        let case = GoldenCase::load(name);
        // Each golden in both arithmetics, in memory and streamed, over 1 to 4 ranks.
        for (n_ranks, arithmetic) in [
            (1 + (idx + 1) % 4, Arithmetic::Int8),
            (2 + idx % 3, Arithmetic::F32),
            (2 + (idx + 1) % 3, Arithmetic::Int8),
        ] {
            let n_slots = (idx + n_ranks).is_multiple_of(2).then_some(1);
            let config_of =
                |_| with_slots(config(BackendKind::Cpu, arithmetic, (5 + idx % 9, 1)), n_slots);
            let alone = open(&case.dir, &config_of(0)).and_then(|it| logits(&it, &case.tokens));
            let shares = Shares::equal(n_ranks);
            let (together, others) =
                job((&case.dir, &shares), &config_of, QUIET, |engine| logits(engine, &case.tokens));
            match (alone, together) {
                (Ok(alone), Ok(together)) => {
                    assert_eq!(alone, together, "{name}: {n_ranks} ranks, {arithmetic:?}");
                    for other in others {
                        other.unwrap_or_else(|error| panic!("{name}: {error}"));
                    }
                    n_divided += 1;
                }
                (_, Err(error)) => {
                    let text = error.to_string();
                    let is_known = text.contains("cannot be divided among")
                        || text.contains("stored with inputs as rows");
                    assert!(is_known, "{name}: {n_ranks} ranks: {text}");
                    assert!(others.iter().all(Result::is_err), "{name}: all ranks refuse");
                    n_refused += 1;
                }
                (Err(error), Ok(_)) => panic!("{name}: {error}"),
            }
        }
    }
    println!("{n_divided} runs over several ranks, and {n_refused} that were refused");
    assert!(n_divided > 10 * n_refused.max(1), "{n_divided} and {n_refused}");
}

fn all_of(logits: Logits<'_>) -> Vec<f32> {
    let Logits::All(values) = logits else { unreachable!("the CPU gives all") };
    values.to_vec()
}

/// Returns the results of two sessions that share a prefix, are truncated, saved and continued,
/// alone and in shared steps.
fn script(engine: &Engine, tokens: &[TokenId]) -> Result<Bits> {
    let (prompt, rest) = tokens.split_at(tokens.len() / 2);
    let mut first = engine.session(2 * tokens.len())?;
    let mut rows = try_feed_all(&mut first, prompt)?;
    first.checkpoint(prompt.len())?;
    let mut second = first.fork()?;
    for pair in rest.windows(2) {
        let mut output = StepOutput::default();
        let mut feeds = [
            Feed::answer(&mut first, &pair[0]).wanting(Wanted::Last),
            Feed::answer(&mut second, &pair[1]).wanting(Wanted::Last),
        ];
        step(&mut feeds, &mut output)?;
        feeds.iter_mut().try_for_each(Feed::outcome)?;
        rows.extend(output.iter().map(|(_, row)| all_of(row)));
    }
    first.truncate(prompt.len())?;
    rows.extend(answer_logits(&mut first, rest[1])?);
    let mut saved = Vec::new();
    second.save_state(&mut saved)?;
    drop(second);
    let mut resumed = engine.session(2 * tokens.len())?;
    resumed.load_state(&mut &saved[..])?;
    rows.extend(try_feed_all(&mut resumed, &rest[..2])?);
    first.clear();
    rows.extend(try_feed_all(&mut first, rest)?);
    Ok(bits(rows))
}

#[test]
fn sessions_in_company_have_the_bits_of_one_process() {
    for name in [
        "mlx-qwen3_5_moe-q4-g64-bf16",
        "deepseek_v3-bf16",
        "gpt_oss-mxfp4",
        "glm_moe_dsa-bf16-sparse",
        "qwen4_exp-bf16-sparse",
    ] {
        let case = GoldenCase::load(name);
        for (shares, arithmetic, n_slots) in [
            (Shares::equal(2), Arithmetic::Int8, None),
            (Shares::new(vec![1, 2]), Arithmetic::Int8Kv8, Some(1)),
        ] {
            let config_of = |_| with_slots(config(BackendKind::Cpu, arithmetic, (8, 1)), n_slots);
            let alone = script(&open(&case.dir, &config_of(0)).unwrap(), &case.tokens).unwrap();
            let work = |engine: &Engine| script(engine, &case.tokens);
            let (together, others) = job((&case.dir, &shares), &config_of, QUIET, work);
            assert_eq!(together.unwrap(), alone, "{name}: {shares:?} {arithmetic:?}");
            others.into_iter().for_each(|it| it.unwrap());
        }
    }
}

/// What a session keeps of its tokens: of all positions, and of each recurrent layer.
fn parts(session: &mut Session) -> Result<Vec<Vec<u8>>> {
    let mut parts = vec![Vec::new()];
    session.write_positions(0..session.tokens().len(), &mut parts[0])?;
    for layer_idx in 0..session.recurrent_layers()?.len() {
        let mut bytes = Vec::new();
        session.write_recurrent_layer(session.tokens().len(), layer_idx, &mut bytes)?;
        parts.push(bytes);
    }
    Ok(parts)
}

/// Loads the parts of the first tokens, and returns the logits of the others.
fn logits_after(engine: &Engine, parts: &[Vec<u8>], tokens: &[TokenId]) -> Result<Bits> {
    let (first, rest) = tokens.split_at(tokens.len() / 2);
    let loading = engine.session(tokens.len())?.load_parts(first.to_vec());
    let mut load = loading.map_err(|failure| failure.error)?;
    load.positions(first.len(), &mut &parts[0][..])?;
    for layer in &parts[1..] {
        load.recurrent_layer(&mut &layer[..])?;
    }
    let mut session = load.finish().map_err(|failure| failure.error)?;
    Ok(bits(try_feed_all(&mut session, rest)?))
}

#[test]
fn what_one_process_saves_several_ranks_load() {
    for name in ["qwen3_next-bf16", "qwen4_exp-bf16-sparse", "qwen3_moe-bf16"] {
        let case = GoldenCase::load(name);
        let config_of = |_| config(BackendKind::Cpu, Arithmetic::Int8, (7, 1));
        let saved = |engine: &Engine| {
            let mut session = engine.session(case.tokens.len())?;
            try_feed_all(&mut session, &case.tokens[..case.tokens.len() / 2])?;
            Ok((engine.state_identity(), parts(&mut session)?))
        };
        let alone = open(&case.dir, &config_of(0)).unwrap();
        let (identity, of_one) = saved(&alone).unwrap();
        let expected = logits_after(&alone, &of_one, &case.tokens).unwrap();
        let shares = Shares::equal(2);
        let (together, others) = job((&case.dir, &shares), &config_of, QUIET, |engine| {
            Ok((saved(engine)?, logits_after(engine, &of_one, &case.tokens)?))
        });
        others.into_iter().for_each(|it| it.unwrap());
        let ((identity_of_two, of_two), loaded) = together.unwrap();
        assert!(identity == identity_of_two && of_one == of_two, "{name}");
        assert!(loaded == expected, "{name}");
    }
}

#[test]
fn ranks_may_have_different_instruction_sets() {
    let case = GoldenCase::load("mlx-qwen3_5_moe-q4-g64-bf16");
    let tables = available();
    let config_of = |rank: usize| EngineConfig {
        kernels: Some(tables[rank % tables.len()]),
        ..config(BackendKind::Cpu, Arithmetic::Int8, (8, 1 + rank))
    };
    let alone = logits(&open(&case.dir, &config_of(0)).unwrap(), &case.tokens).unwrap();
    let work = |engine: &Engine| logits(engine, &case.tokens);
    let (together, _) = job((&case.dir, &Shares::equal(4)), &config_of, QUIET, work);
    assert_eq!(together.unwrap(), alone);
}

#[test]
fn ranks_that_differ_are_refused_by_name() {
    let case = GoldenCase::load("mlx-qwen3_moe-q4-g32-bf16");
    let arithmetic = |rank| if rank == 2 { Arithmetic::F32 } else { Arithmetic::Int8 };
    let config_of = |rank: usize| config(BackendKind::Cpu, arithmetic(rank), (8, 1));
    let work = |engine: &Engine| logits(engine, &case.tokens);
    let (together, others) = job((&case.dir, &Shares::equal(3)), &config_of, QUIET, work);
    let text = together.unwrap_err().to_string();
    assert_eq!(text, "rank 2 (host-2): arithmetic differs: f32, but int8 on rank 0");
    for other in others {
        assert_eq!(other.unwrap_err().to_string(), text);
    }
}

#[test]
fn a_drive_that_fails_on_one_rank_is_named_and_no_session_is_lost() {
    let case = GoldenCase::load("mlx-qwen3_moe-q4-g32-bf16");
    let config_of = |_| with_slots(config(BackendKind::Cpu, Arithmetic::Int8, (8, 1)), Some(1));
    let alone = logits(&open(&case.dir, &config_of(0)).unwrap(), &case.tokens).unwrap();
    let copy = TempDir::copy_of(&case.dir);
    let file = copy.path().join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    let modified = fs::metadata(&file).unwrap().modified().unwrap();
    let dir_of = |rank| if rank == 1 { copy.path().to_owned() } else { case.dir.clone() };
    let (prompt, answer) = case.tokens.split_at(case.tokens.len() / 2);
    let work = |engine: &Engine| {
        let mut session = engine.session(case.tokens.len())?;
        let mut rows = try_feed_all(&mut session, prompt)?;
        File::options().write(true).open(&file).unwrap().set_len(1000).unwrap();
        let error = answer_logits(&mut session, answer[0]).unwrap_err();
        assert!(matches!(error, Error::Expert { .. }), "{error:?}");
        assert!(error.to_string().contains("rank 1 (host-1): "), "{error}");
        // The same file with the same date, or it would be another one.
        fs::write(&file, &bytes).unwrap();
        File::options().write(true).open(&file).unwrap().set_modified(modified).unwrap();
        for token in answer {
            rows.extend(answer_logits(&mut session, *token)?);
        }
        Ok(bits(rows))
    };
    let (together, others) = job_in((&dir_of, &Shares::equal(3)), &config_of, QUIET, work);
    others.into_iter().for_each(|it| it.unwrap());
    assert_eq!(together.unwrap(), alone);
}

/// All logits of a prompt that is given up at the watcher's call of that number, if there is one.
fn prompt_up_to(
    session: &mut Session,
    prompt: &[TokenId],
    n_calls: usize,
) -> Result<Vec<Vec<f32>>> {
    let (mut n_heard, mut rows) = (0, Vec::new());
    let watch = &mut |_| {
        n_heard += 1;
        if n_heard > n_calls { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    session.feed(prompt, Wanted::All, watch, &mut |_, row| {
        rows.push(row.to_vec());
        Ok(())
    })?;
    Ok(rows)
}

/// The logits of all tokens, after a prompt that was given up at each place where it can be.
fn logits_after_all(engine: &Engine, tokens: &[TokenId]) -> Result<Bits> {
    let mut session = engine.session(tokens.len())?;
    let (prompt, answer) = tokens.split_at(tokens.len() / 2);
    for n_calls in 0.. {
        match prompt_up_to(&mut session, prompt, n_calls) {
            Err(Error::Cancelled) => session.clear(),
            done => {
                assert!(n_calls > 2, "given up {n_calls} times");
                let mut rows = done?;
                for token in answer {
                    rows.extend(answer_logits(&mut session, *token)?);
                }
                return Ok(bits(rows));
            }
        }
    }
    unreachable!("calls end")
}

#[test]
fn a_prompt_that_is_cancelled_leaves_all_ranks_where_they_were() {
    for name in ["mlx-qwen3_5_moe-q4-g64-bf16", "gpt_oss-mxfp4"] {
        let case = GoldenCase::load(name);
        let config_of = |_| config(BackendKind::Cpu, Arithmetic::Int8, (4, 1));
        let alone = logits(&open(&case.dir, &config_of(0)).unwrap(), &case.tokens).unwrap();
        let work = |engine: &Engine| logits_after_all(engine, &case.tokens);
        let (together, others) = job((&case.dir, &Shares::equal(2)), &config_of, QUIET, work);
        assert_eq!(together.unwrap(), alone, "{name}");
        others.into_iter().for_each(|it| it.unwrap());
    }
}

/// Runs with a fault each: every one is right or ends on all ranks with an error that names a rank.
fn run_faults(seeds: std::ops::Range<u64>) -> [usize; 2] {
    let case = GoldenCase::load("mlx-qwen3_moe-q4-g32-bf16");
    let config_of = |_| with_slots(config(BackendKind::Cpu, Arithmetic::Int8, (16, 1)), Some(1));
    let alone = logits(&open(&case.dir, &config_of(0)).unwrap(), &case.tokens).unwrap();
    let mut counts = [0; 2];
    for run in seeds {
        let mut rng = Rng::new(run);
        let n_ranks = rng.between(2, 4);
        let rank = rng.below(n_ranks);
        let at = rng.below(120) as u64;
        let fault = match rng.below(5) {
            0 => RankFault::Death,
            1 => RankFault::Loss,
            2 => RankFault::Stall(Duration::from_secs(rng.below(40) as u64)),
            _ => RankFault::Flip(u32::try_from(rng.below(5000)).unwrap()),
        };
        let work = |engine: &Engine| logits(engine, &case.tokens);
        let shares = Shares::equal(n_ranks);
        let faults = [(rank, at, fault)];
        let (together, others) = job((&case.dir, &shares), &config_of, (QUIET.0, &faults), work);
        let what = format!("run {run}: rank {rank} of {n_ranks}, exchange {at}, {fault:?}");
        match together {
            Ok(rows) => {
                assert_eq!(rows, alone, "{what}");
                counts[0] += 1;
            }
            Err(Error::Rank { problem, .. }) => {
                assert!(others.iter().any(Result::is_err), "{what}: {problem}");
                counts[1] += 1;
            }
            Err(error) => panic!("{what}: {error}"),
        }
    }
    counts
}

#[test]
fn no_fault_gives_a_wrong_result_or_hangs() {
    let runs = seeds(200);
    let n_runs = usize::try_from(runs.end - runs.start).unwrap();
    let [n_right, n_named] = run_faults(runs);
    println!("{n_right} runs were right, {n_named} ended with an error");
    assert!(n_right > n_runs / 20 && n_named > n_runs / 4, "{n_right} and {n_named}");
}
