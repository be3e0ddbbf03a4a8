//! A tiny model with tables of n-grams: its rows arrive where they are needed, whatever runs at the
//! same time and whatever the drive does.
//!
//! The model is a golden whose second and third layer add rows to the residual stream. The table is
//! its own embedding, read as narrower rows.

use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use moeflux_io::{Caching, FaultSwitch, Faults, SimulatedDrive, SimulatedFile, VirtualClock};
use moeflux_testing::cases::golden_dir;
use moeflux_testing::drives::transient;
use moeflux_testing::random::seeds;

use super::*;
use crate::backend::Arithmetic;
use crate::blueprint::Blueprint;
use crate::config::{BackendKind, DriveMaker, EngineConfig, StreamingConfig};
use crate::engine::Engine;
use crate::experts::stream::{Drives, ReadPurpose};
use crate::format::Checkpoint;
use crate::forward::Logits;
use crate::ids::{Position, StateId, TableId};
use crate::model::Model;
use crate::ops::{Add, Op, Plan, Row, RowKind, Segment};
use crate::ranks::{LocalRanks, LocalSettings, RankGroup};
use crate::rows::NgramHash;
use crate::session::{Feed, Session, StepOutput, StepUnderWay, Wanted, step};
use crate::spec::NgramShape;
use crate::weights::{FileExtent, RowRun, RowStorage, RowTable, Shares, TableValues};

const HIDDEN: usize = 64;
const N_HEADS: usize = 4;
const N_COLS: usize = HIDDEN / N_HEADS;
const END: TokenId = TokenId(2);
const TABLE: &str = "model.layers.1.ngrams";

fn dir() -> PathBuf {
    golden_dir().join("qwen3_moe-f32")
}

fn tokens() -> Vec<TokenId> {
    let text = std::fs::read_to_string(dir().join("tokens.json")).unwrap();
    let tokens: Vec<u32> = serde_json::from_str(&text).unwrap();
    let mut tokens: Vec<TokenId> = tokens.into_iter().map(TokenId).collect();
    // An end token in the middle, and repeated n-grams after it.
    tokens.truncate(20);
    tokens[7] = END;
    tokens.copy_within(3..6, 14);
    tokens
}

fn hash(table_idx: usize) -> NgramHash {
    NgramHash::new(&NgramShape {
        vocab: 256,
        n_tokens_max: 3,
        n_heads_each: N_HEADS / 2,
        n_rows_min: 100,
        divisor: 1,
        seed: 7,
        table_idx,
        end: END,
    })
}

fn add_tables(blueprint: &mut Blueprint, checkpoint: &Checkpoint) {
    let entry = &checkpoint.tensors["model.embed_tokens.weight"];
    let extent = FileExtent {
        file_idx: entry.file_idx,
        offset_bytes: entry.offset_bytes,
        len_bytes: entry.len_bytes,
    };
    let values = TableValues::Floats(moeflux_kernels::FloatKind::F32);
    let n_rows = 256 * HIDDEN / N_COLS;
    let storage = RowStorage::Tensors(vec![RowRun { first_row: 0, extent }]);
    let name = TABLE.to_owned();
    blueprint.manifest.tables.push(RowTable { name, n_rows, n_cols: N_COLS, values, storage });
    let plan = &mut blueprint.plan;
    let out = plan.workspace.buffer("table_rows", HIDDEN);
    let Some(Op::Embed(embed)) = plan.embed.ops().first() else { panic!("an embedding") };
    let stream = embed.out;
    let add = Op::Add(Add { x: stream, y: out, out: stream });
    for (table_idx, layer) in plan.layers[1..].iter_mut().enumerate() {
        let hash = hash(table_idx);
        assert!(hash.n_rows() <= n_rows);
        layer.lookup = Some(TableLookup { table: TableId(0), hash, out: out.split(N_HEADS) });
        let ops = std::iter::once(add.clone()).chain(layer.mixer.ops().iter().cloned());
        layer.mixer = Plan::new(ops.collect());
    }
}

fn config(backend: BackendKind, n_rows_max: usize, streaming: StreamingConfig) -> EngineConfig {
    EngineConfig {
        backend,
        arithmetic: Arithmetic::F32,
        n_threads: NonZeroUsize::new(2).unwrap(),
        n_rows_max: NonZeroUsize::new(n_rows_max),
        streaming,
        ..EngineConfig::default()
    }
}

fn open(config: &EngineConfig) -> Engine {
    let model = Model::open(dir()).unwrap().changed(add_tables);
    Engine::load(model, config, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn open_plain(n_rows_max: usize) -> Engine {
    open(&config(BackendKind::Cpu, n_rows_max, StreamingConfig::default()))
}

fn feed(session: &mut Session, tokens: &[TokenId]) -> Result<Vec<Vec<f32>>> {
    let mut rows = Vec::new();
    let watch = &mut |_| ControlFlow::Continue(());
    session.feed(tokens, Wanted::All, watch, &mut |_, row| {
        rows.push(row.to_vec());
        Ok(())
    })?;
    Ok(rows)
}

fn all_of(logits: Option<Logits<'_>>) -> Vec<f32> {
    match logits.unwrap() {
        Logits::All(logits) => logits.to_vec(),
        Logits::Best(_) => unreachable!("the CPU returns all"),
    }
}

fn all(engine: &Engine) -> Vec<Vec<f32>> {
    feed(&mut engine.session(64).unwrap(), &tokens()).unwrap()
}

#[test]
fn rows_are_those_of_the_file() {
    let engine = open_plain(64);
    let tokens = &tokens()[..9];
    let found = feed(&mut engine.session(64).unwrap(), tokens).unwrap();
    let bytes = std::fs::read(dir().join("model.safetensors")).unwrap();
    let device = &mut *engine.runtime().lock().unwrap();
    let checkpoint = Checkpoint::open(&dir()).unwrap();
    let first = usize::try_from(checkpoint.tensors["model.embed_tokens.weight"].offset_bytes);
    let first = first.unwrap();
    // What the last layer read is still there.
    let lookup = engine.runtime().model().plan.layers[2].lookup.clone().unwrap();
    let mut rows = Vec::new();
    hash(1).rows(&[], tokens, &mut rows);
    for (row_idx, rows) in rows.chunks(N_HEADS).enumerate() {
        let mut values = [0.0; HIDDEN];
        device.backend.read_row(lookup.out.buffer, row_idx, &mut values).unwrap();
        for (values, row) in values.chunks(N_COLS).zip(rows) {
            let at = first + usize::try_from(*row).unwrap() * N_COLS * 4;
            let (stored, _) = bytes[at..at + N_COLS * 4].as_chunks();
            let stored: Vec<f32> = stored.iter().map(|it| f32::from_le_bytes(*it)).collect();
            assert_eq!(values, stored);
        }
    }
    // They matter.
    let config = config(BackendKind::Cpu, 64, StreamingConfig::default());
    let model = Model::open(dir()).unwrap();
    let plain = Engine::load(model, &config, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(plain.row_stats(), None);
    assert!(feed(&mut plain.session(64).unwrap(), tokens).unwrap() != found);
}

#[test]
fn the_reference_agrees() {
    let reference = open(&config(BackendKind::Reference, 64, StreamingConfig::default()));
    let pairs =
        all(&reference).into_iter().flatten().zip(all(&open_plain(64)).into_iter().flatten());
    let (mut error, mut size) = (0.0, 0.0);
    for (expected, found) in pairs {
        error += (expected - found).powi(2);
        size += expected.powi(2);
    }
    assert!(error < size * 1e-8, "{error} of {size}");
}

#[test]
fn pieces_forks_cuts_and_saved_sessions_have_the_same_rows() {
    let tokens = tokens();
    let expected = all(&open_plain(64));
    for n_rows_max in [1, 2, 3, 7] {
        assert!(all(&open_plain(n_rows_max)) == expected, "{n_rows_max} rows");
    }
    let engine = open_plain(64);
    for cut in [1, 2, 7, 8, 9, 15] {
        let mut session = engine.session(64).unwrap();
        feed(&mut session, &tokens[..cut]).unwrap();
        let mut fork = session.fork().unwrap();
        let rest = feed(&mut session, &tokens[cut..]).unwrap();
        assert!(rest == expected[cut..], "cut at {cut}");
        feed(&mut fork, &tokens[..3]).unwrap();
        fork.truncate(cut).unwrap();
        assert!(feed(&mut fork, &tokens[cut..]).unwrap() == expected[cut..], "fork at {cut}");
        let snapshot = session.snapshot(..cut).unwrap();
        let mut resumed = engine.session(64).unwrap();
        resumed.resume(&snapshot).unwrap();
        assert!(feed(&mut resumed, &tokens[cut..]).unwrap() == expected[cut..], "saved at {cut}");
    }
}

#[test]
fn company_and_pauses_change_nothing() {
    let tokens = tokens();
    let expected = all(&open_plain(64));
    let engine = open_plain(64);
    let [mut prompt, mut answer] = [(); 2].map(|()| engine.session(64).unwrap());
    feed(&mut answer, &tokens[..11]).unwrap();
    let mut feeds = [Feed::prompt(&mut prompt, &tokens).wanting(Wanted::All)];
    let mut under_way = StepUnderWay::begin(&mut feeds).unwrap();
    let mut output = StepOutput::default();
    for token_idx in 11.. {
        let more = under_way.advance().unwrap();
        // Others run between the layers, in the place of its first rows.
        let mut beside = [Feed::answer(&mut answer, &tokens[token_idx])];
        let mut output = StepOutput::default();
        step(&mut beside, &mut output).unwrap();
        let logits = all_of(output.last_of(0));
        assert!(logits == expected[token_idx], "token {token_idx}");
        if !more {
            break;
        }
    }
    while under_way.next_logits(&mut output).unwrap() {}
    under_way.commit().unwrap();
    for ((_, logits), expected) in output.iter().zip(&expected) {
        assert!(all_of(Some(logits)) == *expected);
    }
    // Two sessions in one step.
    let [mut first, mut second] = [(); 2].map(|()| engine.session(64).unwrap());
    feed(&mut second, &tokens[..9]).unwrap();
    let mut feeds = [
        Feed::prompt(&mut first, &tokens).wanting(Wanted::Last),
        Feed::prompt(&mut second, &tokens[9..12]).wanting(Wanted::Last),
    ];
    let mut output = StepOutput::default();
    step(&mut feeds, &mut output).unwrap();
    assert!(all_of(output.last_of(0)) == expected[19]);
    assert!(all_of(output.last_of(1)) == expected[11]);
}

/// Simulated drives, of which the one for rows has faults.
#[derive(Debug)]
struct FaultyDrives {
    faults: Faults,
    switch: FaultSwitch,
    clock: VirtualClock,
}

impl DriveMaker for FaultyDrives {
    fn open(&self, checkpoint: &Checkpoint, read_for: ReadPurpose) -> Result<Drives> {
        let files = checkpoint.files.iter().map(|file| {
            let bytes = std::fs::read(&file.path).unwrap();
            SimulatedFile::of(&file.path.to_string_lossy(), bytes)
        });
        let drive = SimulatedDrive::new(files.collect(), 8, self.clock.clone());
        let drive = match read_for {
            ReadPurpose::Rows => drive.with_faults(self.faults).with_switch(self.switch.clone()),
            ReadPurpose::Slots | ReadPurpose::Memory => drive,
        };
        Ok(Drives {
            primary: Box::new(drive),
            mirror: None,
            caching: Caching::Direct,
            clock: Arc::new(self.clock.clone()),
        })
    }
}

fn open_faulty(faults: Faults, switch: &FaultSwitch) -> Engine {
    let (switch, clock) = (switch.clone(), VirtualClock::default());
    let drives: Arc<dyn DriveMaker> = Arc::new(FaultyDrives { faults, switch, clock });
    let streaming = StreamingConfig {
        n_slots_max: Some(4),
        drives: Some(drives),
        ..StreamingConfig::default()
    };
    open(&config(BackendKind::Cpu, 6, streaming))
}

#[test]
fn transient_faults_of_the_drive_change_nothing() {
    let expected = all(&open_plain(64));
    for seed in seeds(10) {
        let engine = open_faulty(transient(seed), &FaultSwitch::default());
        assert!(all(&engine) == expected, "seed {seed}");
        let stats = engine.row_stats().unwrap();
        assert!(stats.reads > 0 && stats.hits > 0 && stats.hits < stats.asked);
    }
}

/// After every error the engine works again when the drive does, and no session is lost.
#[test]
fn lasting_faults_concern_the_sessions_that_need_the_row() {
    let tokens = tokens();
    let expected = all(&open_plain(64));
    let (mut n_rows, mut n_kept) = (0, 0);
    for seed in seeds(40) {
        let switch = FaultSwitch::default();
        let engine = open_faulty(Faults { seed, n_lost: 150, ..Faults::default() }, &switch);
        let [mut first, mut second] = [(); 2].map(|()| engine.session(64).unwrap());
        let mut feeds = [
            Feed::prompt(&mut first, &tokens[..1]).wanting(Wanted::Last),
            Feed::prompt(&mut second, &tokens[..5]).wanting(Wanted::Last),
        ];
        let mut output = StepOutput::default();
        step(&mut feeds, &mut output).unwrap();
        let failures = feeds.each_ref().map(|feed| feed.failure().cloned());
        for error in failures.iter().flatten() {
            match error {
                Error::TableRow { table, problem, .. } => {
                    assert!(table == TABLE && problem.contains("bytes at offset"), "{error}");
                    n_rows += 1;
                }
                other => panic!("seed {seed}: {other}"),
            }
        }
        // Rows of the first token are needed by both.
        assert!(failures[0].is_none() || failures[1].is_some(), "seed {seed}");
        if failures[0].is_none() {
            n_kept += u32::from(failures[1].is_some());
            assert!(all_of(output.last_of(0)) == expected[0], "seed {seed}");
        }
        switch.set(Faults::default());
        for session in [&mut first, &mut second] {
            session.truncate(session.tokens().len().min(3)).unwrap();
            let n_held = session.tokens().len();
            let rest = feed(session, &tokens[n_held..]).unwrap();
            assert!(rest == expected[n_held..], "seed {seed}");
        }
    }
    assert!(n_rows > 2 && n_kept > 0, "{n_rows} failures of rows, {n_kept} sessions kept");
}

#[test]
fn tables_are_in_memory_where_they_fit_beside_all_experts() {
    let engine = open_plain(64);
    let memory = engine.memory();
    let table_bytes = (256 * HIDDEN * 4) as u64;
    assert!(memory.table_bytes > table_bytes, "{memory:?}");
    let [first, second] = [(); 2].map(|()| {
        all(&engine);
        engine.row_stats().unwrap()
    });
    assert_eq!((first.table_bytes, first.n_cached), (table_bytes, 1024));
    let again = second.since(&first);
    assert_eq!((again.hits, again.reads), (again.asked, 0));
    assert!(again.asked > 0 && first.reads > 0);
}

#[test]
fn each_rank_reads_the_rows() {
    let expected = all(&open_plain(64));
    let shares = Shares::equal(2);
    let settings = LocalSettings::default();
    let mut ranks = LocalRanks::job(2, settings, &[]).into_iter();
    let opened = |ranks: LocalRanks| {
        let group = RankGroup::new(Box::new(ranks), shares.clone()).unwrap();
        let config = config(BackendKind::Cpu, 7, StreamingConfig::default());
        open(&EngineConfig { ranks: Some(group), ..config })
    };
    let [first, second] = [(); 2].map(|()| ranks.next().unwrap());
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let engine = opened(second);
            engine.follow().unwrap();
            engine.row_stats().unwrap()
        });
        let engine = opened(first);
        assert!(all(&engine) == expected);
        let own = engine.row_stats().unwrap();
        drop(engine);
        let others = other.join().unwrap();
        assert_eq!((own.asked, own.hits), (others.asked, others.hits));
    });
}

#[test]
fn the_users_of_a_row_are_found() {
    let engine = open_plain(64);
    let device = &mut *engine.runtime().lock().unwrap();
    let model = engine.runtime().model();
    let tokens = tokens();
    let row = |it: usize| Row { token: tokens[it], position: Position(it) };
    let rows: Vec<Row> = (3..9).map(row).chain((0..2).map(row)).collect();
    let of_first = Segment::new(StateId(1), 0..6, RowKind::Prefill);
    let of_first = Segment { earlier: tokens[1..3].to_vec(), ..of_first };
    let segments = [of_first, Segment::new(StateId(2), 6..8, RowKind::Prefill)];
    let batch = Batch { rows: &rows, segments: &segments, outputs: &[] };
    let mut needed = Vec::new();
    hash(0).rows(&tokens[1..3], &tokens[3..9], &mut needed);
    hash(0).rows(&[], &tokens[..2], &mut needed);
    for (row_idx, rows) in needed.chunks(N_HEADS).enumerate() {
        for row in rows {
            let (table, problem) = (TABLE.to_owned(), String::new());
            let error = Error::TableRow { table, row: *row, problem };
            assert!(rows_that_need(model, device, &batch, &error).contains(&row_idx));
        }
    }
    assert!(rows_that_need(model, device, &batch, &Error::Cancelled).is_empty());
}
