//! A model whose table of rows is stored in FP8 gives the bits of its values stored as floats.

use moeflux::provider::config::BackendKind;
use moeflux::provider::format::DType;
use moeflux_testing::cases::GoldenCase;
use moeflux_testing::random::Rng;
use moeflux_testing::temp_dir::TempDir;
use serde_json::Value;

use crate::packing::{AS_IT_IS, logits, pack, verified};
use crate::results::stored::{Tensor, read, written};

/// With tables in shards.
const CASE: &str = "qwen4_exp-bf16";

const TABLE: &str = "ngram_embedding";

/// Factor of all values: another one would give other logits.
const SCALE: f32 = 0.015625;

/// Returns a value of FP8 e4m3 by its definition.
fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 0xf), f32::from(code & 7) / 8.0);
    let size = match exponent {
        0 => fraction * 2.0_f32.powi(-6),
        _ => (1.0 + fraction) * 2.0_f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { size } else { -size }
}

#[test]
fn rows_in_fp8_are_those_of_its_values() {
    let case = GoldenCase::load(CASE);
    let config = std::fs::read(case.dir.join("config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    let mut floats = read(&case.dir);
    let mut fp8 = floats.clone();
    let names: Vec<String> = floats.keys().filter(|name| name.contains(TABLE)).cloned().collect();
    let names: Vec<String> = names.into_iter().filter(|it| it.ends_with("weight")).collect();
    assert!(!names.is_empty(), "tensors of tables");
    let mut rng = Rng::new(47);
    for name in &names {
        let (dtype, shape, _): &mut Tensor = floats.get_mut(name).unwrap();
        assert_eq!(*dtype, DType::Bf16);
        let n: usize = shape.iter().product();
        let code = |_| u8::try_from(rng.below(0x7f) + 0x80 * rng.below(2)).unwrap();
        let codes: Vec<u8> = (0..n).map(code).collect();
        // Both factors have few digits, so that bf16 holds the product.
        let value = |code: &u8| half::bf16::from_f32(e4m3(*code) * SCALE).to_le_bytes();
        let values = codes.iter().flat_map(value).collect();
        fp8.insert(name.clone(), (DType::F8E4M3, shape.clone(), codes));
        let end = name.find(TABLE).unwrap() + TABLE.len();
        let scale = format!("{}.weight_scale", &name[..end]);
        fp8.insert(scale, (DType::F32, vec![1], SCALE.to_le_bytes().to_vec()));
        floats.get_mut(name).unwrap().2 = values;
    }
    let (of_floats, of_fp8) = (written(&floats, &config), written(&fp8, &config));
    let packed = TempDir::new();
    pack(of_fp8.path(), packed.path(), &AS_IT_IS).unwrap();
    assert_eq!(verified(packed.path()).damages, []);
    for backend in [BackendKind::Reference, BackendKind::Cpu] {
        let expected = logits(of_floats.path(), &case, backend);
        for dir in [of_fp8.path(), packed.path()] {
            assert!(logits(dir, &case, backend) == expected, "{backend:?}");
        }
    }
}
