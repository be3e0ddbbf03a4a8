//! A written trace reads back the same; a damaged one is refused with the location of the fault.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;
use crate::error::Result;
use crate::ids::ExpertIdx;

/// A writer whose bytes the test can still read.
#[derive(Clone, Default)]
struct TraceBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for TraceBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A model with a dense layer first and layers of different shapes.
fn header() -> TraceHeader {
    let layer = |n_experts, top_k, record_bytes| LayerShape { n_experts, top_k, record_bytes };
    TraceHeader {
        fingerprint: 0x0123_4567_89ab_cdef,
        layers: vec![layer(0, 0, 0), layer(300, 2, 7000), layer(8, 1, 9000)],
    }
}

fn experts(indices: &[usize]) -> Vec<ExpertIdx> {
    indices.iter().copied().map(ExpertIdx).collect()
}

/// A prompt of three rows, an aborted step, a whole step.
fn bytes() -> Vec<u8> {
    let file = TraceBuffer::default();
    let out = Box::new(file.clone());
    let mut writer = TraceWriter::new(out, Path::new("t"), header()).unwrap();
    for (kind, layer, chosen) in [
        (StepKind::Prefill, 1, &[1, 299, 0, 1, 1, 2][..]),
        (StepKind::Prefill, 2, &[7, 0, 7]),
        (StepKind::Decode, 1, &[5, 6]),
        (StepKind::Decode, 1, &[5, 7]),
        (StepKind::Decode, 2, &[3]),
    ] {
        writer.layer(kind, LayerIdx(layer), &experts(chosen)).unwrap();
    }
    writer.finish().unwrap();
    let bytes = file.0.lock().unwrap();
    bytes.clone()
}

fn parse(bytes: &[u8]) -> Result<Trace> {
    Trace::parse(bytes, Path::new("some.trace"))
}

#[track_caller]
fn check_refused(bytes: &[u8], expected: &str) {
    let error = parse(bytes).unwrap_err().to_string();
    assert!(error.starts_with("some.trace: ") && error.contains(expected), "{error}");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn a_written_trace_is_read_back() {
    let trace = parse(&bytes()).unwrap();
    assert_eq!(*trace.header(), header());
    assert_eq!((trace.header().n_experts(), trace.header().n_uses_per_row()), (308, 3));
    assert_eq!(trace.header().slot_bytes(), 9000);
    let found = trace.blocks().map(|block| {
        let uses: Vec<String> =
            block.uses.iter().map(|it| format!("{}x{}", it.n_uses, it.expert)).collect();
        format!("{:?} {} L{} {}", block.kind, block.n_rows, block.layer.0, uses.join(" "))
    });
    assert_eq!(
        found.collect::<Vec<_>>(),
        [
            "Prefill 3 L1 1x0 3x1 1x2 1x299",
            "Prefill 3 L2 1x0 2x7",
            "Decode 1 L1 1x5 1x6",
            "Decode 1 L1 1x5 1x7",
            "Decode 1 L2 1x3",
        ]
    );
    assert_eq!((trace.n_rows(StepKind::Prefill), trace.n_rows(StepKind::Decode)), (3, 2));
}

#[test]
fn every_cut_and_every_flipped_bit_is_refused() {
    let whole = bytes();
    for len in 0..whole.len() {
        check_refused(&whole[..len], "truncated: ");
    }
    let mut damaged = whole.clone();
    for bit_idx in 0..8 * whole.len() {
        damaged[bit_idx / 8] ^= 1 << (bit_idx % 8);
        check_refused(&damaged, "at byte ");
        damaged[bit_idx / 8] = whole[bit_idx / 8];
    }
    check_refused(&[&whole[..], &[0]].concat(), "trailing data after the end mark");
}

#[test]
fn a_block_that_is_lost_or_doubled_is_missed() {
    let whole = bytes();
    // Header, rows and checksum: of the end mark and of the two blocks before it.
    let (end, last, before) = (whole.len() - 12, whole.len() - 26, whole.len() - 42);
    check_refused(&[&whole[..last], &whole[end..]].concat(), "damaged");
    check_refused(&[&whole[..last], &whole[before..]].concat(), "damaged");
}

/// Applies `damage` to the header and recomputes its checksum.
fn with_header(damage: impl Fn(&mut [u8])) -> Vec<u8> {
    let mut bytes = bytes();
    let len = 24 + 3 * 16;
    damage(&mut bytes[..len]);
    let sum = checksum(&bytes[..len], u64::MAX);
    bytes[len..len + 4].copy_from_slice(&sum);
    bytes
}

#[test]
fn false_headers_with_a_valid_checksum_allocate_nothing() {
    check_refused(b"not a trace, but long enough to be one", "wrong magic number");
    check_refused(&with_header(|it| it[8] = 2), "unsupported version 2");
    check_refused(&with_header(|it| it[15] = 0x7f), "layers exceed the limit of 4096");
    check_refused(&with_header(|it| it[13] = 1), "truncated: ");
    check_refused(&with_header(|it| it[24 + 16 + 3] = 1), "layer 1: invalid choice of");
    check_refused(&with_header(|it| it[24 + 32 + 4] = 9), "layer 2: invalid choice of 9 of 8");
    check_refused(&with_header(|it| it[24 + 32 + 4] = 0), "layer 2: invalid choice of 0 of 8");
    let first_block = 24 + 3 * 16 + 4;
    let mut bytes = bytes();
    bytes[first_block + 4..][..4].copy_from_slice(&65_536_u32.to_le_bytes());
    check_refused(&bytes, "truncated: ");
    bytes[first_block + 4..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    check_refused(&bytes, "a step of 4294967295 rows");
}

#[test]
fn a_small_file_cannot_claim_more_experts_than_any_model_has() {
    let file_of = |n_layers: u32| {
        let mut file = MAGIC.to_vec();
        [VERSION, n_layers, 0, 0].iter().for_each(|it| file.extend(it.to_le_bytes()));
        for _ in 0..n_layers {
            file.extend([1 << 16, 1_u32, 7, 0].iter().flat_map(|it: &u32| it.to_le_bytes()));
        }
        let sum = checksum(&file, u64::MAX);
        file.extend(sum);
        let end = [code::END, 0, 0, 0, 0, 0, 0, 0];
        file.extend(end);
        file.extend(checksum(&end, 0));
        file
    };
    assert_eq!(parse(&file_of(16)).unwrap().header().n_experts(), N_ALL_EXPERTS_MAX);
    check_refused(&file_of(17), "1114112 experts in total exceed the limit of 1048576, at byte 24");
    let out = Box::new(TraceBuffer::default());
    let layer = LayerShape { n_experts: 1 << 16, top_k: 1, record_bytes: 7 };
    let header = TraceHeader { fingerprint: 0, layers: vec![layer; 17] };
    assert!(TraceWriter::new(out, Path::new("t"), header).is_err());
}

/// Xorshift; the same seed gives the same sequence.
fn random(seed: &mut u64) -> usize {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    usize::try_from(*seed >> 40).unwrap()
}

#[test]
fn random_blocks_with_fitting_checksums_are_read_or_refused() {
    let header = bytes()[..24 + 3 * 16 + 4].to_vec();
    let mut seed = 0x0dd0_5eed_0dd0_5eed;
    let mut n_read = 0;
    for _ in 0..20_000 {
        let mut file = header.clone();
        for block_idx in 0..random(&mut seed) as u64 % 4 {
            let start = file.len();
            let kinds = [code::PREFILL, code::DECODE, code::DECODE, code::END, 7];
            let (kind, layer) = (kinds[random(&mut seed) % 5], [0, 1, 1, 2, 9]);
            let (layer, n_rows) = (layer[random(&mut seed) % 5], [0, 1, 1, 2, 255]);
            file.extend([kind, 0, layer, 0, n_rows[random(&mut seed) % 5], 0, 0, 0]);
            for _ in 0..random(&mut seed) % 5 {
                file.extend([[0, 1, 2, 3, 255][random(&mut seed) % 5], 0]);
            }
            let sum = checksum(&file[start..], block_idx);
            file.extend(sum);
        }
        let end = [code::END, 0, 0, 0, 0, 0, 0, 0];
        file.extend(end);
        let n_blocks = parse(&file).map(|trace| trace.n_blocks() as u64);
        assert!(n_blocks.is_err(), "the end mark has no checksum");
        for n_blocks in 0..4 {
            let mut file = file.clone();
            file.extend(checksum(&end, n_blocks));
            if let Ok(trace) = parse(&file) {
                assert_eq!(trace.n_blocks() as u64, n_blocks);
                n_read += usize::from(n_blocks > 0);
            }
        }
    }
    assert!(n_read > 20, "{n_read} have blocks that can be read");
}

#[test]
fn rows_that_no_router_makes_are_refused() {
    // Row 0 of the first block: experts 1 and 299 of 300.
    let first_block = 24 + 3 * 16 + 4;
    for (experts, expected) in
        [([1_u16, 300], "expert 300"), ([1, 1], "expert 1"), ([299, 298], "expert 298")]
    {
        let mut bytes = bytes();
        let rows = first_block + 8;
        bytes[rows..rows + 2].copy_from_slice(&experts[0].to_le_bytes());
        bytes[rows + 2..rows + 4].copy_from_slice(&experts[1].to_le_bytes());
        let sum = checksum(&bytes[first_block..rows + 12], 0);
        bytes[rows + 12..rows + 16].copy_from_slice(&sum);
        check_refused(&bytes, expected);
    }
}

#[test]
fn a_model_beyond_the_form_is_refused_when_the_trace_begins() {
    for layer in [
        LayerShape { n_experts: 65_537, top_k: 1, record_bytes: 1 },
        LayerShape { n_experts: 8, top_k: 9, record_bytes: 1 },
        LayerShape { n_experts: 4096, top_k: 1025, record_bytes: 1 },
    ] {
        let header = TraceHeader { fingerprint: 0, layers: vec![layer] };
        let out = Box::new(TraceBuffer::default());
        assert!(TraceWriter::new(out, Path::new("t"), header).is_err(), "{layer:?}");
    }
}

#[test]
#[should_panic(expected = "layers of a step in order")]
fn a_layer_out_of_order_is_a_mistake() {
    let out = Box::new(TraceBuffer::default());
    let mut writer = TraceWriter::new(out, Path::new("t"), header()).unwrap();
    drop(writer.layer(StepKind::Decode, LayerIdx(2), &experts(&[1])));
}
