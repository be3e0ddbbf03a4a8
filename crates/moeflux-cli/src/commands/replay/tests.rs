//! A small trace from file to text, JSON and chart.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};

use moeflux::provider::experts::trace::{LayerShape, StepKind, TraceHeader, TraceWriter};
use moeflux::provider::ids::{ExpertIdx, LayerIdx};
use moeflux_testing::temp_dir::TempDir;
use serde_json::Value;

use super::*;
use crate::failure::CommandFailure;

#[derive(Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Two layers of four experts of 1 GiB, two per token: a prompt of two tokens, then four tokens.
fn trace_bytes(n_decoded: usize) -> Vec<u8> {
    let layer = LayerShape { n_experts: 4, top_k: 2, record_bytes: 1 << 30 };
    let header = TraceHeader { fingerprint: 0xab, layers: vec![layer; 2] };
    let file = SharedBuffer::default();
    let mut writer = TraceWriter::new(Box::new(file.clone()), Path::new("t"), header).unwrap();
    let experts = |indices: &[usize]| indices.iter().copied().map(ExpertIdx).collect::<Vec<_>>();
    for layer in [0, 1].map(LayerIdx) {
        writer.layer(StepKind::Prefill, layer, &experts(&[0, 1, 0, 2])).unwrap();
    }
    for step_idx in 0..n_decoded {
        for layer in [0, 1].map(LayerIdx) {
            let chosen = experts(&[0, 1 + step_idx % 2]);
            writer.layer(StepKind::Decode, layer, &chosen).unwrap();
        }
    }
    writer.finish().unwrap();
    let bytes = file.0.lock().unwrap();
    bytes.clone()
}

fn args(file: &Path) -> ReplayArgs {
    ReplayArgs { file: file.to_owned(), slots: vec![8, 4, 4], svg: None, json: false }
}

fn write(dir: &TempDir, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join("a&b.trace");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// By hand, of 16 demands after the prompt: expert 0 of either layer stays, because every token
/// uses it, and the two other slots change with every token: two hits in each step. With the future
/// known, there are 4, 2, 3 and 3.
#[test]
fn a_page_has_hits_and_bytes_of_answers_and_prompts() {
    let dir = TempDir::new();
    let path = write(&dir, &trace_bytes(4));
    let page = run(&args(&path)).unwrap();
    let expected = format!(
        "\
trace     {}, of the model 00000000000000ab
experts   8 in 2 layers, 4 per token; a slot takes 1.00 GiB, a token all cold 4.00 GiB
tokens    2 of prompts, 4 after them

decode: experts found in memory
      slots   share       memory         lfu       bound
          4  50.0 %     4.00 GiB      50.0 %      75.0 %
          8 100.0 %     8.00 GiB     100.0 %     100.0 %

decode: read per token
      slots   share       memory         lfu       bound
          4  50.0 %     4.00 GiB    2.00 GiB    1.00 GiB
          8 100.0 %     8.00 GiB     0 bytes     0 bytes

prompt: experts found in memory
      slots   share       memory         lfu       bound
          4  50.0 %     4.00 GiB       0.0 %       0.0 %
          8 100.0 %     8.00 GiB       0.0 %       0.0 %

prompt: read per token
      slots   share       memory         lfu       bound
          4  50.0 %     4.00 GiB    3.00 GiB    3.00 GiB
          8 100.0 %     8.00 GiB    3.00 GiB    3.00 GiB",
        path.display()
    );
    assert_eq!(page, expected);
}

#[test]
fn json_has_the_same_numbers() {
    let dir = TempDir::new();
    let path = write(&dir, &trace_bytes(4));
    let args = ReplayArgs { json: true, ..args(&path) };
    let value: Value = serde_json::from_str(&run(&args).unwrap()).unwrap();
    assert_eq!((&value["n_prefill_tokens"], &value["n_decode_tokens"]), (&2.into(), &4.into()));
    assert_eq!(value["routed_bytes_per_token"], 4_u64 << 30);
    let names = value["curves"].as_array().unwrap().iter().map(|it| it["policy"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["lfu", "bound"]);
    let point = &value["curves"][0]["points"][1];
    assert_eq!((&point["n_slots"], &point["memory_bytes"]), (&8.into(), &(8_u64 << 30).into()));
    assert_eq!((&point["decode"]["n_hits"], &point["decode"]["n_misses"]), (&16.into(), &0.into()));
    assert_eq!(point["decode"]["hit_rate"], 1.0);
    assert_eq!(point["prefill"]["read_bytes_per_token"], 3_u64 << 30);
}

#[test]
fn the_drawing_has_every_curve_both_axes_and_no_foreign_markup() {
    let dir = TempDir::new();
    for n_decoded in [4, 0] {
        let path = write(&dir, &trace_bytes(n_decoded));
        let svg = dir.path().join("out.svg");
        let args = ReplayArgs { svg: Some(svg.clone()), ..args(&path) };
        run(&args).unwrap();
        let drawing = std::fs::read_to_string(svg).unwrap();
        assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"));
        assert_eq!(drawing.matches("<polyline ").count(), 2);
        for word in [">lfu<", ">bound<", ">100 %<", ">8 GiB<", "a&amp;b.trace", "all 8: 8.00 GiB"] {
            assert!(drawing.contains(word), "{word}: {drawing}");
        }
        assert!(!drawing.contains("a&b"));
        // For prompts, the bytes read per token are not the complement of the hits.
        assert_eq!(drawing.contains("read per token"), n_decoded > 0);
        let n_texts = drawing.matches("<text ").count();
        assert_eq!(n_texts, drawing.matches("</text>").count());
        assert!(n_texts > 15);
        assert_eq!(drawing.matches("NaN").count() + drawing.matches("inf").count(), 0);
    }
}

#[test]
fn without_budgets_all_shares_are_tried() {
    let dir = TempDir::new();
    let path = write(&dir, &trace_bytes(1));
    let trace = Trace::open(&path).unwrap();
    let args = ReplayArgs { slots: Vec::new(), ..args(&path) };
    assert_eq!(budgets(&args, &trace), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn traces_that_cannot_be_replayed_are_refused_in_one_line() {
    let dir = TempDir::new();
    let whole = trace_bytes(1);
    let path = write(&dir, &whole[..whole.len() - 1]);
    let fails = |args: &ReplayArgs| match run(args) {
        Err(CommandFailure::Failed(error)) => error.to_string(),
        other => unreachable!("{other:?}"),
    };
    assert!(fails(&args(&path)).contains("truncated"));
    let header = whole[..24 + 2 * 16 + 4].to_vec();
    write(&dir, &header);
    assert!(fails(&args(&path)).contains("truncated"));
    assert!(fails(&args(&dir.path().join("none"))).contains("none"));
    write(&dir, b"{}");
    assert!(!fails(&args(&path)).contains('\n'));
}

#[test]
fn slots_are_numbers() {
    assert_eq!((n_slots(" 7"), n_slots("16777216")), (Ok(7), Ok(1 << 24)));
    for text in ["0", "-1", "", "x", "16777217"] {
        assert!(n_slots(text).unwrap_err().contains("from 1 to"), "{text}");
    }
}
