//! GGUF files that `synth` writes are read back by the engine's own reader.

use std::path::PathBuf;

use moeflux::provider::format::{BlockType, Checkpoint, DType, gguf_at};
use moeflux::provider::kernels::{Matrix, MatrixKind, MatrixLayout, decode_row};
use moeflux::provider::model::Headers;
use moeflux::provider::spec::{HeadOrder, MixerSpec, Quantisation};
use moeflux::provider::weights::block_kind;
use moeflux::{Engine, Model, ModelText, TokenId};
use moeflux_testing::temp_dir::TempDir;

use super::tests::*;
use super::*;

fn gguf_args(temp: &TempDir, config: &Value, types: &str) -> SynthArgs {
    SynthArgs { gguf: GgufTypes::from_name(types), ..args(temp, config) }
}

/// Removes the fields that the file cannot express, and resets those that it orders differently.
fn plain(mut spec: ModelSpec) -> ModelSpec {
    (spec.eos, spec.quantisation) = (Vec::new(), Quantisation::default());
    for layer in &mut spec.layers {
        if let MixerSpec::GatedDelta(delta) = &mut layer.mixer {
            delta.order = HeadOrder::Grouped;
        }
    }
    spec
}

#[test]
fn every_family_becomes_a_gguf_file_of_the_same_geometry() {
    for config in families() {
        let temp = TempDir::new();
        let args = gguf_args(&temp, &config, "Q4_0");
        let message = synth(&args).unwrap();
        assert!(message.contains("as GGUF in Q4_0"), "{message}");
        let (made, checkpoint) = Model::open(&args.out).unwrap().into_parts();
        let bare = BareConfig::open(&args.config).unwrap();
        let synthetic = bare.blueprint_as(SyntheticKind::Gguf(args.gguf.unwrap())).unwrap();
        assert_eq!(made.manifest.skipped, []);
        assert_eq!(made.manifest.kinds(), synthetic.manifest.kinds(), "{config}");
        assert_eq!(plain(made.spec), plain(synthetic.spec), "{config}");
        let ManifestOrigin::Synthetic(synthetic) = synthetic.manifest.origin else {
            panic!("imagined")
        };
        assert_eq!(checkpoint.tensors.len(), synthetic.tensors.len());
    }
}

#[test]
fn a_family_without_gguf_files_is_refused_by_name() {
    let temp = TempDir::new();
    let error = synth(&gguf_args(&temp, &qwen4_exp(), "Q4_0")).unwrap_err().to_string();
    assert!(error.contains("\"qwen4exp\": this architecture is not supported"), "{error}");
}

#[test]
fn every_type_runs_and_has_weights_of_zero_mean() {
    let mut config = qwen3_moe();
    config["hidden_size"] = json!(256);
    config["moe_intermediate_size"] = json!(256);
    config["num_hidden_layers"] = json!(1);
    let all = BlockType::all().filter_map(|it| GgufTypes::from_name(it.name()));
    for types in all.chain(GgufTypes::from_name("Q4_K_M")) {
        let temp = TempDir::new();
        let args = gguf_args(&temp, &config, &types.to_string());
        synth(&args).unwrap();
        let checkpoint = Checkpoint::open(&args.out).unwrap();
        let values = weights(&checkpoint, "model.layers.0.mlp.switch_mlp.up_proj.weight");
        let error = 4.0 / (values.len() as f32).sqrt();
        // A block's factor scales 256 weights, so there are fewer independent samples.
        assert_close(mean(values.iter().copied()) * 16.0, 0.0, 4.0 * error);
        let square = mean(values.iter().map(|value| value * value));
        assert_close(square.sqrt() * 16.0, 1.0, 0.1);

        let engine = Engine::builder(Model::open(&args.out).unwrap()).load().unwrap();
        let mut session = engine.session(8).unwrap();
        let logits = session.feed_last(&[1, 2, 3].map(TokenId)).unwrap();
        let largest = logits.iter().fold(0.0_f32, |most, it| most.max(it.abs()));
        assert!((0.1..100.0).contains(&largest), "{types}: {largest}");
    }
}

/// Returns all weights of a tensor of blocks.
fn weights(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let DType::Block(block) = checkpoint.tensors[name].dtype else { panic!("{name} has blocks") };
    let kind = block_kind(block).unwrap();
    let bytes = tensor(checkpoint, name);
    let n_cols = bytes.len() / kind.block_bytes() * kind.block_cols();
    let layout = MatrixLayout::new(MatrixKind::Block(kind), 1, n_cols).unwrap();
    let mut values = vec![0.0; n_cols];
    decode_row(&Matrix::new(layout, &bytes, &[], &[]), 0, &mut values);
    values
}

#[test]
fn parts_and_threads_do_not_change_a_value() {
    let temps = [TempDir::new(), TempDir::new()];
    let config = qwen3_5_moe();
    let one = SynthArgs { threads: NonZeroUsize::new(1), ..gguf_args(&temps[0], &config, "Q5_1") };
    let many = SynthArgs {
        shard_size: 50_000,
        threads: NonZeroUsize::new(5),
        ..gguf_args(&temps[1], &config, "Q5_1")
    };
    let [one, many] = [one, many].map(|args| {
        synth(&args).unwrap();
        Checkpoint::open(&args.out).unwrap()
    });
    assert!(one.files.len() == 1 && many.files.len() > 5);
    assert_eq!(one.tensors.len(), many.tensors.len());
    for name in one.tensors.keys() {
        assert_eq!(tensor(&one, name), tensor(&many, name), "{name}");
    }
}

#[test]
fn the_metadata_have_tokenizer_template_and_sampling() {
    for config in families() {
        let temp = TempDir::new();
        let args = gguf_args(&temp, &config, "Q8_0");
        synth(&args).unwrap();
        let file: PathBuf = gguf_at(&args.out).unwrap().unwrap();
        let text = ModelText::open(&file, 320).unwrap();
        assert_eq!(text.tokenizer().vocab_size(), 320);
        let tokens = text.prompt("Hi \n").unwrap();
        assert_eq!(tokens, [72, 105, 32, 10].map(TokenId));
        assert_eq!(text.end_tokens(), [256, 257].map(TokenId));
        assert!(text.chat_template().unwrap().is_some());
        assert_close(text.sampling(0).temperature, 1.0, 0.0);
    }
}

#[test]
fn a_geometry_without_keys_is_refused_before_a_byte_is_written() {
    let temp = TempDir::new();
    let mut config = qwen3_moe();
    config["mlp_only_layers"] = json!([1]);
    let args = gguf_args(&temp, &config, "Q8_0");
    let line = synth(&args).unwrap_err().to_string();
    assert!(line.contains("no keys for this geometry") && line.contains("layer 1"), "{line}");
    assert!(!args.out.exists());
}
