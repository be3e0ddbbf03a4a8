//! One model with experts in MXFP4, in the formats of all publishers of such models: the same bits
//! in memory, from a drive and packed.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use moeflux::provider::backend::Arithmetic;
use moeflux::provider::config::{BackendKind, EngineConfig, StreamingConfig};
use moeflux::provider::engine::Engine;
use moeflux::provider::format::DType;
use moeflux::provider::model::Model;
use moeflux_testing::cases::{GoldenCase, feed_all};
use moeflux_testing::temp_dir::TempDir;
use serde_json::{Value, json};

use crate::packing::{AS_IT_IS, logits, pack, verified};
use crate::results::stored::{Tensor, read, written};
use crate::support::config;

/// Spelled as compressed-tensors does.
const CASE: &str = "qwen3_moe-mxfp4";

const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    GptOss,
    DeepseekV4,
    Mlx,
}

/// The experts of a layer: of each projection, codes and scales of one after the other.
struct Experts {
    prefix: String,
    n: usize,
    /// By projection: rows, and bytes of a row of codes and of scales.
    shapes: [(usize, [usize; 2]); 3],
    parts: [[Vec<u8>; 2]; 3],
}

impl Experts {
    fn take(tensors: &mut BTreeMap<String, Tensor>, prefix: String) -> Option<Self> {
        let name = |e: usize, projection: &str, part: &str| {
            format!("{prefix}.experts.{e}.{projection}.weight_{part}")
        };
        let (mut shapes, mut parts) = ([(0, [0; 2]); 3], [const { [Vec::new(), Vec::new()] }; 3]);
        let mut n = 0;
        while tensors.contains_key(&name(n, "gate_proj", "packed")) {
            for (p, projection) in PROJECTIONS.iter().enumerate() {
                for (k, part) in ["packed", "scale"].into_iter().enumerate() {
                    let (_, shape, bytes) = tensors.remove(&name(n, projection, part)).unwrap();
                    shapes[p].0 = shape[0];
                    shapes[p].1[k] = shape[1];
                    parts[p][k].extend(bytes);
                }
            }
            n += 1;
        }
        (n > 0).then_some(Self { prefix, n, shapes, parts })
    }

    fn write(&self, spelling: Spelling, tensors: &mut BTreeMap<String, Tensor>) {
        let Self { prefix, n, shapes, parts } = self;
        let mut add = |name: String, dtype, shape: &[usize], bytes: Vec<u8>| {
            tensors.insert(format!("{prefix}.{name}"), (dtype, shape.to_vec(), bytes));
        };
        for (p, projection) in PROJECTIONS.iter().enumerate() {
            let ((n_rows, [codes, scales]), [all_codes, all_scales]) = (shapes[p], &parts[p]);
            match spelling {
                Spelling::Mlx => {
                    let base = format!("switch_mlp.{projection}");
                    let shape = [*n, n_rows, codes / 4];
                    add(format!("{base}.weight"), DType::U32, &shape, all_codes.clone());
                    let shape = [*n, n_rows, scales];
                    add(format!("{base}.scales"), DType::U8, &shape, all_scales.clone());
                }
                Spelling::DeepseekV4 => {
                    for e in 0..*n {
                        let base = format!("experts.{e}.{projection}");
                        let of =
                            |all: &[u8], n: usize| all[e * n_rows * n..][..n_rows * n].to_vec();
                        let bytes = of(all_codes, codes);
                        add(format!("{base}.weight"), DType::I8, &[n_rows, codes], bytes);
                        let bytes = of(all_scales, scales);
                        add(format!("{base}.scale"), DType::F8E8M0, &[n_rows, scales], bytes);
                    }
                }
                Spelling::GptOss if p == 2 => {
                    let shape = [*n, n_rows, scales, 16];
                    let name = |part| format!("experts.{projection}_{part}");
                    add(name("blocks"), DType::U8, &shape, all_codes.clone());
                    add(name("scales"), DType::U8, &shape[..3], all_scales.clone());
                }
                Spelling::GptOss if p == 0 => {
                    let both = |k: usize| {
                        let row_bytes = shapes[0].1[k];
                        let rows = |p: usize| parts[p][k].chunks(row_bytes);
                        let pairs = rows(0).zip(rows(1));
                        pairs.flat_map(|(gate, up)| [gate, up].concat()).collect::<Vec<u8>>()
                    };
                    let shape = [*n, 2 * n_rows, scales, 16];
                    add("experts.gate_up_proj_blocks".to_owned(), DType::U8, &shape, both(0));
                    add("experts.gate_up_proj_scales".to_owned(), DType::U8, &shape[..3], both(1));
                }
                Spelling::GptOss => {}
            }
        }
    }
}

/// The case in another spelling.
fn spelled(case: &Path, spelling: Spelling) -> TempDir {
    let mut tensors = read(case);
    for layer in 0..4 {
        let prefix = format!("model.layers.{layer}.mlp");
        if let Some(experts) = Experts::take(&mut tensors, prefix) {
            experts.write(spelling, &mut tensors);
        }
    }
    let config = std::fs::read(case.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    let map = config.as_object_mut().unwrap();
    map.remove("quantization_config");
    match spelling {
        Spelling::GptOss => {
            let section = json!({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]});
            map.insert("quantization_config".to_owned(), section);
        }
        Spelling::DeepseekV4 => {
            let section = json!({"quant_method": "fp8", "scale_fmt": "ue8m0", "fmt": "e4m3",
                "weight_block_size": [128, 128]});
            map.insert("quantization_config".to_owned(), section);
            map.insert("expert_dtype".to_owned(), json!("fp4"));
        }
        Spelling::Mlx => {
            let section = json!({"group_size": 32, "bits": 4, "mode": "mxfp4"});
            map.insert("quantization".to_owned(), section);
        }
    }
    written(&tensors, &config)
}

/// Logits with this number of experts in memory.
fn streamed(
    dir: &Path,
    case: &GoldenCase,
    n_slots: usize,
    arithmetic: Arithmetic,
) -> Vec<Vec<f32>> {
    let streaming = StreamingConfig { n_slots_max: Some(n_slots), ..StreamingConfig::default() };
    let config = EngineConfig { streaming, ..config(BackendKind::Cpu, arithmetic, (24, 2)) };
    let engine =
        Engine::load(Model::open(dir).unwrap(), &config, &mut |_| ControlFlow::Continue(()))
            .unwrap();
    let mut session = engine.session(case.tokens.len()).unwrap();
    let (prompt, rest) = case.tokens.split_at(30);
    let mut rows = feed_all(&mut session, prompt);
    rest.iter().for_each(|token| rows.extend(feed_all(&mut session, std::slice::from_ref(token))));
    rows
}

#[test]
fn every_spelling_gives_the_same_bits() {
    let case = GoldenCase::load(CASE);
    let backends = [BackendKind::Reference, BackendKind::Cpu];
    let expected = backends.map(|backend| logits(&case.dir, &case, backend));
    let arithmetics = [Arithmetic::Int8, Arithmetic::F32];
    let of_slots = arithmetics.map(|it| streamed(&case.dir, &case, 2, it));
    for spelling in [Spelling::GptOss, Spelling::DeepseekV4, Spelling::Mlx] {
        let dir = spelled(&case.dir, spelling);
        let packed = TempDir::new();
        pack(dir.path(), packed.path(), &AS_IT_IS).unwrap();
        assert_eq!(verified(packed.path()).damages, [], "{spelling:?}");
        for dir in [dir.path(), packed.path()] {
            for (backend, expected) in backends.into_iter().zip(&expected) {
                assert!(&logits(dir, &case, backend) == expected, "{spelling:?} on {backend:?}");
            }
            for (arithmetic, expected) in arithmetics.into_iter().zip(&of_slots) {
                for n_slots in [1, 2, 5] {
                    let found = streamed(dir, &case, n_slots, arithmetic);
                    assert!(&found == expected, "{spelling:?}, {n_slots} slots, {arithmetic:?}");
                }
            }
        }
        // Records of a pack do not take turns: they are those of any other spelling.
        let of_case = TempDir::new();
        pack(&case.dir, of_case.path(), &AS_IT_IS).unwrap();
        let record = |dir: &Path| {
            let file = std::fs::read(dir.join("experts-00001.safetensors")).unwrap();
            file[file.len() - 6 * (16 << 10) - 7 * 8..][..6 * (16 << 10)].to_vec()
        };
        assert!(record(packed.path()) == record(of_case.path()), "{spelling:?}: records");
    }
}
