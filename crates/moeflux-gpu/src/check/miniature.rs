//! A reduced model: one layer of each kind that a model has, with as many experts as a check needs.
//!
//! **Invariant:** retained parts have the shapes, weight kinds and operations of the model, so that
//! a device runs the same kernels. Weights are random.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher as _;
use std::sync::Arc;

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::error::{Error, Remedy, Result};
use moeflux::provider::families::{LayerPlan, ModelPlan, MoePlan};
use moeflux::provider::ids::{ExpertIdx, LayerIdx, MatrixId};
use moeflux::provider::ops::{
    ExpertBiases, ExpertFfn, Heads, MatMul, Op, Plan, Purpose, Route, RouterKind, StateSpec,
    Workspace,
};
use moeflux::provider::weights::{ExpertLayout, ExpertView, Manifest, VectorSource, Weights};
use moeflux_io::AlignedBytes;
use moeflux_kernels::{FloatKind, MatrixKind, MatrixLayout};
use twox_hash::XxHash3_64;

use crate::values::WeightGenerator;

/// Rows of the prompt: some tiles of 64 and 128 rows are whole, some partial.
pub(super) const N_PROMPT: usize = 150;
/// Tokens of the answer after it.
pub(super) const N_ANSWER: usize = 3;
/// Vocabulary of the embedding and the head.
const N_TOKENS: usize = N_PROMPT + N_ANSWER;
/// Experts of a layer per expert chosen by a row.
const EXPERTS_PER_CHOICE: usize = 2;
/// Placeholder for a matrix that no retained layer uses.
const UNUSED: MatrixLayout =
    MatrixLayout { kind: MatrixKind::Float(FloatKind::F32), n_rows: 1, n_cols: 32 };

/// The distinct layers of a model, with random weights.
#[derive(Debug)]
pub(super) struct ReducedModel {
    pub(super) weights: Arc<Weights>,
    pub(super) workspace: Workspace,
    pub(super) state: StateSpec,
    pub(super) embed: Plan,
    /// Size of its vocabulary.
    pub(super) n_tokens: usize,
    /// The residual stream that layers add to.
    pub(super) stream: Heads,
    pub(super) layers: Vec<ReducedLayer>,
    pub(super) head: Plan,
    pub(super) logits: Heads,
}

/// A layer of it.
#[derive(Debug)]
pub(super) struct ReducedLayer {
    pub(super) idx: LayerIdx,
    pub(super) mixer: Plan,
    pub(super) routed: Option<ReducedExperts>,
}

/// The routed experts of a layer.
#[derive(Debug)]
pub(super) struct ReducedExperts {
    pub(super) shared: Plan,
    pub(super) experts: Plan,
    pub(super) combine: Plan,
    pub(super) whole: Plan,
    pub(super) layout: ExpertLayout,
    records: Vec<AlignedBytes>,
}

impl ReducedExperts {
    pub(super) fn n_experts(&self) -> usize {
        self.records.len()
    }

    pub(super) fn record(&self, expert: ExpertIdx) -> &[u8] {
        &self.records[expert.0]
    }

    pub(super) fn view(&self, expert: ExpertIdx) -> ExpertView<'_> {
        self.layout.view(self.record(expert))
    }
}

impl ReducedModel {
    /// Builds the reduced model.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory is exhausted.
    pub(super) fn new(blueprint: &Blueprint, seed: u64) -> Result<Self> {
        let Blueprint { plan, manifest, .. } = blueprint;
        let kept = distinct_layers(plan, manifest);
        let mut reducer = ModelReducer::default();
        let embed = reducer.embed(&plan.embed);
        let (head, logits) = reducer.head(plan);
        let mut values = WeightGenerator::new(seed);
        let mut layers = Vec::new();
        for idx in kept {
            layers.push(layer(&mut reducer, &mut values, (idx, &plan.layers[idx.0]), manifest)?);
        }
        let (stream, table) = match plan.embed.ops().first() {
            Some(Op::Embed(embed)) => (embed.out, embed.table),
            _ => unreachable!("a model begins with its embedding"),
        };
        let weights = weights(&reducer, &mut values, manifest)?;
        Ok(Self {
            weights: Arc::new(weights),
            workspace: plan.workspace.clone(),
            state: plan.state.clone(),
            embed,
            n_tokens: N_TOKENS.min(manifest.matrix(table).layout.n_rows),
            stream,
            layers,
            head,
            logits,
        })
    }
}

/// Returns the first layer of each kind.
fn distinct_layers(plan: &ModelPlan, manifest: &Manifest) -> Vec<LayerIdx> {
    let mut sorts = BTreeSet::new();
    let is_new =
        |(idx, layer): &(usize, &LayerPlan)| sorts.insert(sort_of(layer, manifest, LayerIdx(*idx)));
    let found = plan.layers.iter().enumerate().filter(is_new);
    found.map(|(idx, _)| LayerIdx(idx)).collect()
}

/// Returns a hash that identifies the checked parts of a model: the kinds of its layers, embedding
/// and head. Models with the same hash differ only in the number of layers and tokens.
#[must_use]
pub fn layers_fingerprint(blueprint: &Blueprint) -> u64 {
    let Blueprint { plan, manifest, .. } = blueprint;
    let layers = plan.layers.iter().enumerate();
    let sorts: BTreeSet<String> =
        layers.map(|(idx, layer)| sort_of(layer, manifest, LayerIdx(idx))).collect();
    let mut hasher = XxHash3_64::default();
    sorts.iter().for_each(|sort| hasher.write(sort.as_bytes()));
    for op in plan.embed.ops().iter().chain(plan.head.ops()) {
        hasher.write(op.name().as_bytes());
        for id in op.matrices() {
            hasher.write(format!("{:?}", manifest.matrix(id).layout.kind).as_bytes());
        }
    }
    hasher.finish()
}

/// Describes everything that selects a layer's kernels: operations, shapes, weight kinds.
fn sort_of(layer: &LayerPlan, manifest: &Manifest, idx: LayerIdx) -> String {
    let mut sort = String::new();
    let plan = layer.moe.as_ref().map_or(&layer.mixer, |moe| &moe.whole);
    for op in plan.ops() {
        let layouts: Vec<_> = op.matrices().iter().map(|id| manifest.matrix(*id).layout).collect();
        let window = match op {
            Op::Attention(attention) => attention.window,
            _ => None,
        };
        sort += &format!("{} {:?} {layouts:?} {window:?}\n", op.name(), op.heads());
    }
    sort + &format!("{:?}", manifest.bank(idx).map(|bank| bank.layout))
}

/// The matrices and vectors in use, and the retained part of each.
#[derive(Debug, Default)]
struct ModelReducer {
    /// Rows kept of a matrix; all if `None`.
    rows: BTreeMap<MatrixId, Option<usize>>,
    /// Retained part of each vector, by its index.
    vectors: BTreeMap<usize, RetainedVector>,
}

/// Retained part of a vector, and its use.
#[derive(Clone, Copy, Debug, Default)]
struct RetainedVector {
    /// Number of leading values kept; all if `None`.
    n_values: Option<usize>,
    /// Whether it is a multiplier. Its values are then about 1.
    is_gain: bool,
}

impl ModelReducer {
    fn embed(&mut self, plan: &Plan) -> Plan {
        let ops = plan.ops().iter().map(|op| match op {
            Op::Embed(embed) => {
                self.rows.insert(embed.table, Some(N_TOKENS));
                op.clone()
            }
            other => self.whole(other),
        });
        let ops = ops.collect();
        Plan::over(plan.rows(), ops)
    }

    /// Reduces the head to as many logits as there are tokens.
    fn head(&mut self, plan: &ModelPlan) -> (Plan, Heads) {
        let is_last =
            matches!(plan.head.ops().last(), Some(Op::MatMul(op)) if op.out == plan.logits);
        let n_logits = N_TOKENS.min(plan.logits.head_dim);
        let logits = if is_last { plan.logits.narrow(0, n_logits) } else { plan.logits };
        let ops = plan.head.ops().iter().map(|op| match op {
            Op::MatMul(product) if is_last && product.out == plan.logits => {
                self.rows.insert(product.weight, Some(N_TOKENS));
                Op::MatMul(MatMul { out: logits, ..product.clone() })
            }
            other => self.whole(other),
        });
        let ops = ops.collect();
        (Plan::over(plan.head.rows(), ops), logits)
    }

    fn whole(&mut self, op: &Op) -> Op {
        for id in op.matrices() {
            self.rows.entry(id).or_insert(None);
        }
        let is_gain = matches!(op, Op::RmsNorm(_));
        for id in op.vectors() {
            let part = RetainedVector { n_values: None, is_gain };
            self.vectors.entry(id.0).or_insert(part);
        }
        op.clone()
    }

    /// Reduces a plan to the retained experts.
    fn routed(&mut self, plan: &Plan, router: Option<&ReducedRouter>, manifest: &Manifest) -> Plan {
        let ops = plan.ops().iter().map(|op| match router {
            Some(router) => self.of_router(op, router, manifest),
            None => self.whole(op),
        });
        let ops = ops.collect();
        Plan::over(plan.rows(), ops)
    }

    fn of_router(&mut self, op: &Op, router: &ReducedRouter, manifest: &Manifest) -> Op {
        let ReducedRouter { logits, n_kept } = *router;
        match op {
            Op::MatMul(product) if product.out == logits => {
                self.rows.insert(product.weight, Some(n_kept));
                if let Some(bias) = product.bias {
                    let part = RetainedVector { n_values: Some(n_kept), is_gain: false };
                    self.vectors.insert(bias.0, part);
                }
                Op::MatMul(MatMul { out: logits.narrow(0, n_kept), ..product.clone() })
            }
            Op::Route(route) => {
                if let RouterKind::SigmoidGrouped { correction, .. } = route.kind {
                    let part = RetainedVector { n_values: Some(n_kept), is_gain: false };
                    self.vectors.insert(correction.0, part);
                }
                Op::Route(Route { logits: logits.narrow(0, n_kept), ..route.clone() })
            }
            Op::ExpertFfn(ExpertFfn { biases: Some(biases), .. }) => {
                for id in ExpertBiases::all(biases) {
                    let n_of_each = manifest.vector(id).n_values() / logits.head_dim;
                    let n_values = Some(n_of_each * n_kept);
                    self.vectors.insert(id.0, RetainedVector { n_values, is_gain: false });
                }
                op.clone()
            }
            other => self.whole(other),
        }
    }
}

/// The router of a layer.
#[derive(Clone, Copy, Debug)]
struct ReducedRouter {
    logits: Heads,
    /// Experts among which it chooses.
    n_kept: usize,
}

impl ReducedRouter {
    fn of(mixer: &Plan) -> Option<Self> {
        mixer.ops().iter().find_map(|op| match op {
            Op::Route(route) if route.purpose == Purpose::Compute => {
                Some(Self { logits: route.logits, n_kept: n_kept(route) })
            }
            _ => None,
        })
    }
}

/// Returns the smallest number of experts that leaves a choice in every group.
fn n_kept(route: &Route) -> usize {
    let n_wanted = EXPERTS_PER_CHOICE * route.top_k;
    let n_kept = match route.kind {
        RouterKind::Softmax { .. } => n_wanted,
        RouterKind::SigmoidGrouped { n_groups, n_groups_kept, .. } => {
            // A group is scored by its two best experts.
            let n_of_group = n_wanted.div_ceil(n_groups_kept.max(1)).max(2);
            n_of_group * n_groups
        }
    };
    n_kept.min(route.logits.head_dim)
}

fn layer(
    reducer: &mut ModelReducer,
    values: &mut WeightGenerator,
    (idx, plan): (LayerIdx, &LayerPlan),
    manifest: &Manifest,
) -> Result<ReducedLayer> {
    let router = ReducedRouter::of(&plan.mixer);
    let mixer = reducer.routed(&plan.mixer, router.as_ref(), manifest);
    let bank = manifest.bank(idx);
    let (Some(moe), Some(router), Some(bank)) = (&plan.moe, router, bank) else {
        return Ok(ReducedLayer { idx, mixer, routed: None });
    };
    let MoePlan { shared, experts, combine, whole, .. } = moe;
    let mut of = |plan: &Plan| reducer.routed(plan, Some(&router), manifest);
    let [shared, experts, combine, whole] = [of(shared), of(experts), of(combine), of(whole)];
    let ExpertLayout { gate, up, down } = bank.layout;
    // Interleaved rows of gate and up are separated when they are copied to a device.
    let layout = ExpertLayout::new(gate.layout, up.layout, down.layout);
    let n_bytes = layout.record_bytes();
    let mut records = Vec::new();
    for _ in 0..router.n_kept {
        let mut record = AlignedBytes::zeroed(n_bytes).ok_or_else(|| {
            Error::no_room("an expert to check a GPU with", n_bytes as u64, Remedy::SmallerModel)
        })?;
        values.expert(&layout, &mut record);
        records.push(record);
    }
    let routed = Some(ReducedExperts { shared, experts, combine, whole, layout, records });
    Ok(ReducedLayer { idx, mixer, routed })
}

/// Returns random weights for all that are used. Constants of the model stay unchanged.
fn weights(
    reducer: &ModelReducer,
    values: &mut WeightGenerator,
    manifest: &Manifest,
) -> Result<Weights> {
    let mut weights = Weights::default();
    for (idx, source) in manifest.matrices.iter().enumerate() {
        let layout = match reducer.rows.get(&MatrixId(idx)) {
            None => UNUSED,
            Some(None) => source.layout,
            Some(Some(n_rows)) => {
                MatrixLayout { n_rows: source.layout.n_rows.min(*n_rows), ..source.layout }
            }
        };
        weights.push_matrix(values.matrix(layout)?);
    }
    for (idx, source) in manifest.vectors.iter().enumerate() {
        let Some(part) = reducer.vectors.get(&idx) else {
            weights.push_vector(vec![0.0]);
            continue;
        };
        let n_values = part.n_values.unwrap_or(usize::MAX).min(source.n_values());
        weights.push_vector(match source {
            VectorSource::Constant(constant) => constant[..n_values].to_vec(),
            VectorSource::Stored(_) => {
                let middle = f32::from(u8::from(part.is_gain));
                (0..n_values).map(|_| middle + values.float() * 0.5).collect()
            }
        });
    }
    Ok(weights)
}
