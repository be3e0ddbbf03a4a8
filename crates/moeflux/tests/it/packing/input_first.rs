//! Experts whose rows are inputs, as Qwen3-VL is published: refused by engines, turned by `pack`.

use std::path::Path;

use moeflux::provider::config::BackendKind;
use moeflux::provider::error::Error;
use moeflux_testing::cases::{Distance, GoldenCase, feed_all, golden_dir};
use moeflux_testing::temp_dir::TempDir;

use super::{AS_IT_IS, pack, quantised, verified};
use crate::support::{open, open_with};

const NAME: &str = "input-first/qwen3_vl_moe-bf16";

fn distance(dir: &Path, case: &GoldenCase) -> Distance {
    let engine = open(dir, BackendKind::Cpu, 64);
    let mut session = engine.session(case.tokens.len()).unwrap();
    Distance::between(&feed_all(&mut session, &case.tokens), &case.logits)
}

#[test]
fn an_engine_names_the_way_out() {
    let dir = golden_dir().join(NAME);
    let error = open_with(&dir, BackendKind::Cpu, (64, 2)).map(drop).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    let message = error.to_string();
    assert!(message.contains("with inputs as rows"), "{message}");
    assert!(message.contains("run `moeflux pack "), "{message}");
}

#[test]
fn a_pack_has_them_by_outputs() {
    let case = GoldenCase::load(NAME);
    let target = TempDir::new();
    pack(&case.dir, target.path(), &AS_IT_IS).unwrap();
    assert!(verified(target.path()).damages.is_empty());
    let distance = distance(target.path(), &case);
    assert_eq!(distance.beyond_f32_limits(), None, "{distance:?}");
}

#[test]
fn a_quantised_pack_stays_close() {
    let case = GoldenCase::load(NAME);
    let target = TempDir::new();
    pack(&case.dir, target.path(), &quantised(8, 32)).unwrap();
    assert!(verified(target.path()).damages.is_empty());
    let distance = distance(target.path(), &case);
    assert!(distance.nmse > 0.0 && distance.nmse < 2e-3, "{distance:?}");
}
