//! Shader text: constants, bindings, shared fragments and a kernel's own file, concatenated.
//!
//! **Invariant:** a shader is fully determined by its text, so pipelines are shared by text.
//! Variation between models is a `const` line or a parameter, never modified kernel text.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use crate::adapter::PARAM_BYTES_MAX;
use crate::config::Tiers;
use crate::params::WgslStruct;

/// Positions in a page of a layer's state. Sessions grow by pages: small sessions waste little,
/// and the lists of large ones stay short.
pub(crate) const PAGE_POSITIONS: usize = 256;

/// Element type with which a kernel accesses a buffer of 4-byte values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum VectorWidth {
    /// `array<f32>` or `array<u32>`.
    One,
    /// `array<vec4<f32>>` or `array<vec4<u32>>`.
    Four,
}

impl VectorWidth {
    fn of(self, scalar: &str) -> String {
        match self {
            Self::One => format!("array<{scalar}>"),
            Self::Four => format!("array<vec4<{scalar}>>"),
        }
    }
}

/// Contents of bind group 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum WeightGroup {
    /// One buffer: an arena, or slots.
    Alone,
    /// Slots in two buffers, and the counters of expert uses.
    Tiers,
}

/// Bind groups of a kernel besides group 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct BindGroups {
    weights: Option<WeightGroup>,
    /// Group 2: `first` and `second` of a layer's state, and the pages of sessions.
    has_state: bool,
}

/// The value of a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ShaderConstant {
    /// An integer.
    Whole(u32),
    /// A boolean.
    Truth(bool),
}

impl From<u32> for ShaderConstant {
    fn from(value: u32) -> Self {
        Self::Whole(value)
    }
}

impl From<bool> for ShaderConstant {
    fn from(value: bool) -> Self {
        Self::Truth(value)
    }
}

/// A kernel with all its choices.
#[derive(Clone, Debug)]
pub(crate) struct Shader {
    name: &'static str,
    params: WgslStruct,
    source: &'static str,
    consts: Vec<(&'static str, ShaderConstant)>,
    fragments: Vec<&'static str>,
    workspace: VectorWidth,
    vectors: VectorWidth,
    weights: Option<VectorWidth>,
    tiers: Tiers,
    state: Option<VectorWidth>,
    /// First lines of the text.
    enables: &'static str,
}

const STORED: &str = include_str!("kernels/shared/stored.wgsl");
const STORED_IN_TIERS: &str = include_str!("kernels/shared/stored_in_tiers.wgsl");
const PARTS: &str = include_str!("kernels/shared/parts.wgsl");
const COMMON: &str = include_str!("kernels/shared/common.wgsl");
const VALUES: &str = include_str!("kernels/shared/values.wgsl");
const VALUES_OF_QUADS: &str = include_str!("kernels/shared/values_of_quads.wgsl");
const VECTORS: &str = include_str!("kernels/shared/vectors.wgsl");
const VECTORS_OF_QUADS: &str = include_str!("kernels/shared/vectors_of_quads.wgsl");
/// First line of text in half precision.
const HALVES: &str = "enable f16;\n";
/// First lines of text with cooperative matrices.
const COOPERATIVE: &str = "enable f16;\nenable wgpu_cooperative_matrix;\n";

impl Shader {
    /// Returns the kernel of a file with the entry point `main`.
    #[must_use]
    pub(crate) const fn new(name: &'static str, params: WgslStruct, source: &'static str) -> Self {
        Self {
            name,
            params,
            source,
            consts: Vec::new(),
            fragments: Vec::new(),
            workspace: VectorWidth::One,
            vectors: VectorWidth::One,
            weights: None,
            tiers: Tiers::Device,
            state: None,
            enables: "",
        }
    }

    /// Adds `const NAME: u32 = value;` or `bool`.
    #[must_use]
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<ShaderConstant>) -> Self {
        self.consts.push((name, value.into()));
        self
    }

    /// Adds a shared fragment before the kernel's own text.
    #[must_use]
    pub(crate) fn fragment(mut self, fragment: &'static str) -> Self {
        self.fragments.push(fragment);
        self
    }

    /// Sets the element type of `ws`; single values by default.
    #[must_use]
    pub(crate) const fn workspace(mut self, width: VectorWidth) -> Self {
        self.workspace = width;
        self
    }

    /// Sets the element type of `vectors`; single values by default.
    #[must_use]
    pub(crate) const fn vectors(mut self, width: VectorWidth) -> Self {
        self.vectors = width;
        self
    }

    /// Enables cooperative matrices and half precision.
    #[must_use]
    pub(crate) const fn cooperative(mut self) -> Self {
        self.enables = COOPERATIVE;
        self
    }

    /// Enables half precision.
    #[must_use]
    pub(crate) const fn halves(mut self) -> Self {
        self.enables = HALVES;
        self
    }

    /// Returns whether the kernel uses cooperative matrices.
    #[cfg(test)]
    pub(crate) fn is_cooperative(&self) -> bool {
        self.enables == COOPERATIVE
    }

    /// Binds `weights`.
    #[must_use]
    pub(crate) const fn weights(mut self, width: VectorWidth) -> Self {
        self.weights = Some(width);
        self
    }

    /// Marks the weights as experts in these memories.
    #[must_use]
    pub(crate) const fn tiers(mut self, tiers: Tiers) -> Self {
        self.tiers = tiers;
        self
    }

    /// Binds `first` and `second` of a layer's state.
    #[must_use]
    pub(crate) const fn state(mut self, width: VectorWidth) -> Self {
        self.state = Some(width);
        self
    }

    /// Returns the name used in messages.
    #[must_use]
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the kernel's bind groups.
    #[must_use]
    pub(crate) const fn groups(&self) -> BindGroups {
        let weights = match (self.weights, self.tiers) {
            (None, _) => None,
            (Some(_), Tiers::Device) => Some(WeightGroup::Alone),
            (Some(_), Tiers::DeviceAndHost) => Some(WeightGroup::Tiers),
        };
        BindGroups { weights, has_state: self.state.is_some() }
    }

    /// Returns the complete text.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        let mut text = self.enables.to_owned();
        for (name, value) in &self.consts {
            let line = match value {
                ShaderConstant::Whole(value) => format!("const {name}: u32 = {value}u;\n"),
                ShaderConstant::Truth(value) => format!("const {name}: bool = {value};\n"),
            };
            text += &line;
        }
        let mut bind = |group: u32, binding: u32, access: &str, name: &str, kind: &str| {
            // Writing to a `String` does not fail.
            let _ = writeln!(
                text,
                "@group({group}) @binding({binding}) var<storage, {access}> {name}: {kind};"
            );
        };
        bind(0, 0, "read_write", "ws", &self.workspace.of("f32"));
        bind(0, 1, "read", "batch", "array<vec4<u32>>");
        bind(0, 2, "read_write", "routes", "array<vec2<u32>>");
        bind(0, 3, "read", "slots", "array<u32>");
        bind(0, 4, "read", "vectors", &self.vectors.of("f32"));
        if let Some(width) = self.weights {
            bind(1, 0, "read", "weights", &width.of("u32"));
            if self.tiers == Tiers::DeviceAndHost {
                bind(1, 1, "read", "far", &width.of("u32"));
                bind(1, 2, "read_write", "uses", "array<atomic<u32>>");
            }
        }
        if let Some(width) = self.state {
            bind(2, 0, "read_write", "first", &width.of("f32"));
            bind(2, 1, "read_write", "second", &width.of("f32"));
            bind(2, 2, "read", "pages", "array<u32>");
        }
        text += self.params.0;
        text += "var<immediate> params: Params;\n";
        text += COMMON;
        text += match self.workspace {
            VectorWidth::One => VALUES,
            VectorWidth::Four => VALUES_OF_QUADS,
        };
        text += match self.vectors {
            VectorWidth::One => VECTORS,
            VectorWidth::Four => VECTORS_OF_QUADS,
        };
        text += match (self.weights, self.tiers) {
            (None, _) => "",
            (Some(_), Tiers::Device) => STORED,
            (Some(_), Tiers::DeviceAndHost) => STORED_IN_TIERS,
        };
        if self.state.is_some() {
            let _ = writeln!(text, "const PAGE: u32 = {PAGE_POSITIONS}u;");
            text += PARTS;
        }
        for fragment in &self.fragments {
            text += fragment;
        }
        text += self.source;
        text
    }
}

/// Layouts of bind groups and pipelines: few, created once.
#[derive(Debug)]
pub(crate) struct Layouts {
    /// Group 0.
    pub(crate) model: wgpu::BindGroupLayout,
    /// Group 1.
    pub(crate) weights: wgpu::BindGroupLayout,
    /// Group 1 for experts in two memories.
    pub(crate) tiers: wgpu::BindGroupLayout,
    /// Group 2.
    pub(crate) state: wgpu::BindGroupLayout,
    pipelines: Mutex<HashMap<BindGroups, Arc<wgpu::PipelineLayout>>>,
}

impl Layouts {
    pub(crate) fn new(device: &wgpu::Device) -> Self {
        let layout = |label: &str, are_read_only: &[bool]| {
            let entries: Vec<wgpu::BindGroupLayoutEntry> = (0..)
                .zip(are_read_only)
                .map(|(binding, &read_only)| wgpu::BindGroupLayoutEntry {
                    binding,
                    visibility: wgpu::ShaderStages::COMPUTE,
                    ty: wgpu::BindingType::Buffer {
                        ty: wgpu::BufferBindingType::Storage { read_only },
                        has_dynamic_offset: false,
                        min_binding_size: None,
                    },
                    count: None,
                })
                .collect();
            let (label, entries) = (Some(label), entries.as_slice());
            device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries })
        };
        Self {
            model: layout("model", &[false, true, false, true, true]),
            weights: layout("weights", &[true]),
            tiers: layout("experts", &[true, true, false]),
            state: layout("state", &[false, false, true]),
            pipelines: Mutex::default(),
        }
    }

    /// Returns the layout of pipelines with these groups.
    pub(crate) fn of(
        &self,
        device: &wgpu::Device,
        groups: BindGroups,
    ) -> Arc<wgpu::PipelineLayout> {
        let mut known = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let made = known.entry(groups).or_insert_with(|| {
            let mut layouts = vec![
                Some(&self.model),
                groups.weights.map(|weights| match weights {
                    WeightGroup::Alone => &self.weights,
                    WeightGroup::Tiers => &self.tiers,
                }),
                groups.has_state.then_some(&self.state),
            ];
            while layouts.last().is_some_and(Option::is_none) {
                layouts.pop();
            }
            Arc::new(device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &layouts,
                immediate_size: PARAM_BYTES_MAX,
            }))
        });
        Arc::clone(made)
    }
}
