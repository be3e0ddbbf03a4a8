//! Checks all shaders without a GPU: they parse, are valid, and can be translated for Metal and
//! DX12 within the limits there.

use std::path::PathBuf;

use naga::back::{hlsl, msl};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ShaderStage, StorageAccess, TypeInner};

use super::KERNELS;
use crate::config::MATRIX_WORKGROUP_BYTES;
use crate::shader::Shader;

/// Threadgroup memory of Metal.
const WORKGROUP_BYTES_MAX: u32 = 32 << 10;
/// Buffers of a Metal kernel.
const N_BUFFERS_MAX: u8 = 31;
/// Versions of Metal's language that wgpu requests: on macOS 11, which is the first on Apple
/// silicon, and on macOS 26.
const OLDEST_MSL: (u8, u8) = (2, 3);
const NEWEST_MSL: (u8, u8) = (4, 0);

fn shaders() -> impl Iterator<Item = Shader> {
    KERNELS.iter().flat_map(|kernel| (kernel.shaders)())
}

fn parsed(shader: &Shader) -> (Module, ModuleInfo) {
    let text = shader.text();
    let name = shader.name();
    let module = naga::front::wgsl::parse_str(&text)
        .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&text)));
    let capabilities = Capabilities::IMMEDIATES
        | Capabilities::SUBGROUP
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::COOPERATIVE_MATRIX;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
    let info = validator.validate(&module);
    (module, info.unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(&text))))
}

#[test]
fn every_shader_is_valid_and_within_the_limits_of_metal() {
    let mut n = 0;
    for shader in shaders() {
        let (module, _) = parsed(&shader);
        let name = shader.name();
        let entries: Vec<_> = module.entry_points.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(entries, ["main"], "{name}");
        let sizes: u32 = module
            .global_variables
            .iter()
            .filter(|(_, it)| it.space == AddressSpace::WorkGroup)
            .map(|(_, it)| module.types[it.ty].inner.size(module.to_ctx()))
            // wgpu requests it from Metal in steps of 16.
            .map(|n_bytes| n_bytes.next_multiple_of(16))
            .sum();
        let most = match shader.is_cooperative() {
            true => MATRIX_WORKGROUP_BYTES,
            false => WORKGROUP_BYTES_MAX,
        };
        assert!(sizes <= most, "{name}: {sizes} bytes of workgroup memory");
        n += 1;
    }
    assert!(n > 0);
}

/// Returns wgpu's translation of a shader for Metal, in a version of the language.
fn metal_text(name: &str, (module, info): &(Module, ModuleInfo), lang_version: (u8, u8)) -> String {
    let mut resources = msl::EntryPointResources {
        immediates_buffer: Some(0), // wgpu counts on from there
        ..msl::EntryPointResources::default()
    };
    let mut n_buffers = 1;
    for (_, variable) in module.global_variables.iter() {
        let (Some(binding), AddressSpace::Storage { access }) = (variable.binding, variable.space)
        else {
            continue;
        };
        let mutable = access.contains(StorageAccess::STORE);
        let buffer = Some(n_buffers);
        let target = msl::BindTarget { buffer, mutable, ..msl::BindTarget::default() };
        resources.resources.insert(binding, target);
        n_buffers += 1;
    }
    resources.sizes_buffer = Some(n_buffers);
    n_buffers += 1;
    assert!(n_buffers <= N_BUFFERS_MAX, "{name}: {n_buffers} buffers");
    let options = msl::Options {
        lang_version,
        per_entry_point_map: [("main".to_owned(), resources)].into(),
        fake_missing_bindings: false,
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Restrict,
            buffer: BoundsCheckPolicy::Restrict,
            image_load: BoundsCheckPolicy::Restrict,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        // As the device requests it.
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..msl::Options::default()
    };
    let pipeline = msl::PipelineOptions {
        entry_point: Some((ShaderStage::Compute, "main".to_owned())),
        vertex_pulling_transform: true,
        ..msl::PipelineOptions::default()
    };
    let written = msl::write_string(module, info, &options, &pipeline);
    let (text, made) = written.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(matches!(made.entry_point_names[..], [Ok(_)]), "{name}: {made:?}");
    text
}

/// With `MOEFLUX_MSL`, writes the translations to that folder, for `tools/check/msl.sh`.
#[test]
fn every_shader_translates_to_metal() {
    #[expect(clippy::disallowed_methods, reason = "a test's own variable: see TESTING.md")]
    let folder = std::env::var_os("MOEFLUX_MSL").map(PathBuf::from);
    for (idx, shader) in shaders().filter(|it| !it.is_cooperative()).enumerate() {
        let name = shader.name();
        let checked = parsed(&shader);
        let text = metal_text(name, &checked, OLDEST_MSL);
        // WGSL's 16 x 16 matrices do not exist in Metal.
        assert!(!text.contains("metal::simdgroup_"), "{name}: matrices");
        // The first line names the version.
        let newest = metal_text(name, &checked, NEWEST_MSL);
        assert!(text.lines().skip(1).eq(newest.lines().skip(1)), "{name}: depends on the version");
        if let Some(folder) = &folder {
            std::fs::write(folder.join(format!("{idx:04}-{name}.metal")), text).unwrap();
        }
    }
}

#[test]
fn every_shader_translates_to_hlsl() {
    for shader in shaders().filter(|it| !it.is_cooperative()) {
        let (module, info) = parsed(&shader);
        let mut options = hlsl::Options {
            shader_model: hlsl::ShaderModel::V6_2,
            fake_missing_bindings: true,
            ..Default::default()
        };
        options.immediates_target = Some(hlsl::BindTarget { register: 30, ..Default::default() });
        let mut text = String::new();
        let pipeline =
            hlsl::PipelineOptions { entry_point: Some((ShaderStage::Compute, "main".to_owned())) };
        let mut writer = hlsl::Writer::new(&mut text, &options, &pipeline);
        let written = writer.write(&module, &info, None);
        assert!(written.is_ok(), "{}: {written:?}", shader.name());
    }
}

#[test]
fn only_cooperative_kernels_have_cooperative_matrices() {
    let is_matrix = |it: &naga::Type| matches!(it.inner, TypeInner::CooperativeMatrix { .. });
    let mut n = 0;
    for shader in shaders() {
        let (module, _) = parsed(&shader);
        let has_matrices = module.types.iter().any(|(_, it)| is_matrix(it));
        assert_eq!(has_matrices, shader.is_cooperative(), "{}", shader.name());
        n += u32::from(has_matrices);
    }
    assert!(n > 0);
}
