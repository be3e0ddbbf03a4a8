//! What kernels are told while a plan is compiled: where things lie, and what was asked for; and
//! the steps that they leave.
//!
//! **Invariant:** steps hold only what does not change between batches. Knows no kernel: which one
//! an op has is for [`crate::kernels`].

use std::collections::HashMap;

use moeflux::provider::error::{Error, Result};
use moeflux::provider::ids::{LayerIdx, MatrixId, VectorId};
use moeflux::provider::ops::{Heads, RowSet};
use moeflux_kernels::MatrixLayout;

use crate::config::GpuConfig;
use crate::device::Gpu;
use crate::memory::weights::{DeviceMatrix, DeviceWeights};
use crate::memory::workspace::DeviceWorkspace;
use crate::params::{Params, View, narrow};
use crate::shader::Shader;
use crate::step::{Axis, Grid, Over, Step};

/// What the last router leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RouteShape {
    /// Experts of each row.
    pub(crate) top_k: usize,
    /// Experts of the layer.
    pub(crate) n_experts: usize,
}

/// Where a matrix lies in an expert's slot, in words from the slot's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotMatrix {
    /// Kind and shape.
    pub(crate) layout: MatrixLayout,
    /// First word of the codes or values.
    pub(crate) codes: u32,
    /// First word of the scales.
    pub(crate) scales: u32,
    /// First word of the biases.
    pub(crate) biases: u32,
}

/// How an expert lies in its slot. Slot `s` begins at word `s * n_words` of the bound buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotShape {
    /// `[inner, hidden]`.
    pub(crate) gate: SlotMatrix,
    /// `[inner, hidden]`.
    pub(crate) up: SlotMatrix,
    /// `[hidden, inner]`.
    pub(crate) down: SlotMatrix,
    /// Words of a slot; a multiple of 64.
    pub(crate) n_words: u32,
}

/// Compiles one plan.
#[derive(Debug)]
pub(crate) struct Compiler<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) config: &'a GpuConfig,
    pub(crate) weights: &'a DeviceWeights,
    pub(crate) workspace: &'a mut DeviceWorkspace,
    pub(crate) slots: &'a HashMap<LayerIdx, SlotShape>,
    pub(crate) route: RouteShape,
    pub(crate) guess: Option<(View, RouteShape)>,
    pub(crate) steps: Vec<Step>,
}

impl Compiler<'_> {
    /// The device: its limits and features decide which kernel is taken.
    #[must_use]
    pub(crate) fn gpu(&self) -> &Gpu {
        self.gpu
    }

    /// Smallest and largest subgroup, where kernels may use them.
    #[must_use]
    pub(crate) fn subgroup_sizes(&self) -> Option<(u32, u32)> {
        self.gpu.facts().subgroup_sizes.filter(|_| self.config().uses_subgroups)
    }

    /// What was asked for.
    #[must_use]
    pub(crate) fn config(&self) -> &GpuConfig {
        self.config
    }

    /// Rows of a batch at most: what scratch has room for.
    #[must_use]
    pub(crate) fn n_rows_max(&self) -> u32 {
        narrow(self.workspace.n_rows_max)
    }

    /// Where the values of heads lie.
    #[must_use]
    pub(crate) fn view(&self, heads: &Heads) -> View {
        self.workspace.view(heads)
    }

    /// Where a vector begins in `vectors`; a multiple of 4.
    #[must_use]
    pub(crate) fn vector(&self, id: VectorId) -> u32 {
        self.weights.vector(id)
    }

    /// A resident matrix.
    #[must_use]
    pub(crate) fn matrix(&self, id: MatrixId) -> DeviceMatrix {
        self.weights.matrix(id).clone()
    }

    /// How experts of a layer lie in their slots.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if none of them was ever there.
    pub(crate) fn slot_shape(&self, layer: LayerIdx) -> Result<SlotShape> {
        self.slots.get(&layer).copied().ok_or_else(|| {
            Error::Unsupported(format!("no experts of layer {} are on the device", layer.0))
        })
    }

    /// What the last router leaves in `routes`: row `r`, rank `k` at `r * top_k + k`, as (expert,
    /// bits of the weight), ascending by expert within a row.
    #[must_use]
    pub(crate) fn route(&self) -> RouteShape {
        self.route
    }

    /// Says what a router leaves, before its steps.
    pub(crate) fn set_route(&mut self, route: RouteShape) {
        self.route = route;
    }

    /// Says where a router leaves a guess: experts and weights, row by row.
    pub(crate) fn set_guess(&mut self, guess: (View, RouteShape)) {
        self.guess = Some(guess);
    }

    /// So many values per row in the workspace that ops of all plans share under a name. They
    /// outlast a plan: what one op leaves there another finds.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`].
    pub(crate) fn scratch(&mut self, name: &'static str, n_cols: usize) -> Result<View> {
        self.workspace.scratch(self.gpu, name, (narrow(n_cols), RowSet::All))
    }

    /// The same for rows of the kind that a view has.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`].
    pub(crate) fn scratch_beside(
        &mut self,
        heads: &Heads,
        name: &'static str,
        n_cols: usize,
    ) -> Result<View> {
        let rows = self.workspace.place(heads.buffer).rows;
        self.workspace.scratch(self.gpu, name, (narrow(n_cols), rows))
    }

    /// Appends a dispatch over all rows, to be refined.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] when the driver does not take the kernel.
    pub(crate) fn step(
        &mut self,
        shader: &Shader,
        params: &impl Params,
        grid: Grid,
    ) -> Result<&mut Step> {
        let pipeline = self.gpu.pipeline(shader);
        self.steps.push(Step {
            name: shader.name(),
            pipeline,
            params: params.words(),
            grid,
            over: Over::Rows,
            weights: None,
            n_rows: 1..=u32::MAX,
            parts_along: Axis::Z,
            splits: None,
            merges: false,
            among: None,
        });
        Ok(self.steps.last_mut().expect("one was just pushed"))
    }
}
