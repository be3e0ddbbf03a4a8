//! All shaders without a GPU: they parse, are valid, can be translated for Metal and DX12 within
//! the limits there, and their parameters lie where Rust puts them.

use std::collections::BTreeMap;

use naga::back::{hlsl, msl};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module, ShaderStage, TypeInner};

use super::KERNELS;
use crate::config::MATRIX_WORKGROUP_BYTES;
use crate::shader::Shader;

/// Metal's memory of a threadgroup.
const WORKGROUP_BYTES_MAX: u32 = 32 << 10;
/// Metal's buffers of a kernel.
const N_BUFFERS_MAX: usize = 31;

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

#[test]
fn every_shader_translates_to_metal() {
    for shader in shaders().filter(|it| !it.is_cooperative()) {
        let (module, info) = parsed(&shader);
        let mut resources = msl::EntryPointResources::default();
        for (_, variable) in module.global_variables.iter() {
            let Some(binding) = variable.binding else { continue };
            let slot = u8::try_from(resources.resources.len()).unwrap();
            let target =
                msl::BindTarget { buffer: Some(slot), mutable: true, ..Default::default() };
            resources.resources.insert(binding, target);
        }
        let n_buffers = resources.resources.len() + 2;
        assert!(n_buffers <= N_BUFFERS_MAX, "{}: {n_buffers} buffers", shader.name());
        resources.immediates_buffer = Some(29);
        resources.sizes_buffer = Some(30);
        let options = msl::Options {
            lang_version: (2, 4),
            per_entry_point_map: [("main".to_owned(), resources)].into(),
            fake_missing_bindings: false,
            ..Default::default()
        };
        let pipeline = msl::PipelineOptions::default();
        let written = msl::write_string(&module, &info, &options, &pipeline);
        let (text, _) = written.unwrap_or_else(|e| panic!("{}: {e}", shader.name()));
        // Those that there are in WGSL of 16 x 16 do not exist there.
        assert!(!text.contains("metal::simdgroup_"), "{}: matrices", shader.name());
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
fn only_kernels_that_say_so_have_cooperative_matrices() {
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

#[test]
fn parameters_lie_where_rust_puts_them() {
    let known: BTreeMap<&str, _> = KERNELS.iter().flat_map(|kernel| (kernel.params)()).collect();
    for shader in shaders() {
        let (module, _) = parsed(&shader);
        let params = module.types.iter().find(|(_, it)| it.name.as_deref() == Some("Params"));
        let name = shader.name();
        let Some((_, params)) = params else { panic!("{name} has no Params") };
        let TypeInner::Struct { members, span } = &params.inner else {
            panic!("{name}: Params is a struct")
        };
        assert!(*span <= 128, "{name}: {span} bytes of parameters");
        assert_eq!(members[0].name.as_deref(), Some("step"), "{name}");
        let places: Vec<(&str, usize)> = members[1..]
            .iter()
            .map(|it| (it.name.as_deref().unwrap(), it.offset as usize - 16))
            .collect();
        let expected = known.get(name);
        assert_eq!(Some(&places), expected, "{name}: WGSL on the left, Rust on the right");
    }
}
