//! A model with the layers of another, one of each sort, and the experts that a check has room for.
//!
//! **Invariant:** what is kept has the shapes, the kinds of weights and the operations of the
//! model, so that a device runs the same kernels. Weights are random.

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

use crate::values::Values;

/// Rows of the prompt: tiles of 64 and 128 rows are whole and in part.
pub(super) const N_PROMPT: usize = 150;
/// Tokens of the answer behind it.
pub(super) const N_ANSWER: usize = 3;
/// Tokens that the embedding and the head know.
const N_TOKENS: usize = N_PROMPT + N_ANSWER;
/// Experts of a layer, for each that a row chooses.
const EXPERTS_PER_CHOICE: usize = 2;
/// Stands for a matrix that no kept layer uses.
const UNUSED: MatrixLayout =
    MatrixLayout { kind: MatrixKind::Float(FloatKind::F32), n_rows: 1, n_cols: 32 };

/// The layers of a model that differ, with random weights.
#[derive(Debug)]
pub(super) struct Miniature {
    pub(super) weights: Arc<Weights>,
    pub(super) workspace: Workspace,
    pub(super) state: StateSpec,
    pub(super) embed: Plan,
    /// Tokens that it knows.
    pub(super) n_tokens: usize,
    /// What layers add to.
    pub(super) stream: Heads,
    pub(super) layers: Vec<Layer>,
    pub(super) head: Plan,
    pub(super) logits: Heads,
}

/// A layer of it.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) idx: LayerIdx,
    pub(super) mixer: Plan,
    pub(super) sparse: Option<Sparse>,
}

/// The routed experts of a layer.
#[derive(Debug)]
pub(super) struct Sparse {
    pub(super) shared: Plan,
    pub(super) experts: Plan,
    pub(super) combine: Plan,
    pub(super) whole: Plan,
    pub(super) layout: ExpertLayout,
    records: Vec<AlignedBytes>,
}

impl Sparse {
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

impl Miniature {
    /// # Errors
    ///
    /// [`Error::NoRoom`].
    pub(super) fn new(blueprint: &Blueprint, seed: u64) -> Result<Self> {
        let Blueprint { plan, manifest, .. } = blueprint;
        let kept = distinct_layers(plan, manifest);
        let mut cut = Cut::default();
        let embed = cut.embed(&plan.embed);
        let (head, logits) = cut.head(plan);
        let mut values = Values::new(seed);
        let mut layers = Vec::new();
        for idx in kept {
            layers.push(layer(&mut cut, &mut values, (idx, &plan.layers[idx.0]), manifest)?);
        }
        let (stream, table) = match plan.embed.ops().first() {
            Some(Op::Embed(embed)) => (embed.out, embed.table),
            _ => unreachable!("a model begins with its embedding"),
        };
        let weights = weights(&cut, &mut values, manifest)?;
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

/// The first layer of each sort.
fn distinct_layers(plan: &ModelPlan, manifest: &Manifest) -> Vec<LayerIdx> {
    let mut sorts = BTreeSet::new();
    let is_new =
        |(idx, layer): &(usize, &LayerPlan)| sorts.insert(sort_of(layer, manifest, LayerIdx(*idx)));
    let found = plan.layers.iter().enumerate().filter(is_new);
    found.map(|(idx, _)| LayerIdx(idx)).collect()
}

/// Names what is checked of a model, by a sum over the sorts of its layers and the kinds of its
/// embedding and head: models that share it differ only in how many layers and tokens they have.
#[must_use]
pub fn name_of_layers(blueprint: &Blueprint) -> u64 {
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

/// What decides which kernels run: operations, shapes, kinds of weights.
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

/// Which matrices and vectors are used, and how much of them.
#[derive(Debug, Default)]
struct Cut {
    /// Rows of a matrix.
    rows: BTreeMap<MatrixId, Option<usize>>,
    /// What is kept of each vector, by its number.
    vectors: BTreeMap<usize, VectorPart>,
}

/// What is kept of a vector, and what it is for.
#[derive(Clone, Copy, Debug, Default)]
struct VectorPart {
    /// Its first values; all of them without a number.
    n_values: Option<usize>,
    /// Whether it multiplies: then it is about 1.
    is_gain: bool,
}

impl Cut {
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

    /// The head with as many logits as there are tokens.
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
            let part = VectorPart { n_values: None, is_gain };
            self.vectors.entry(id.0).or_insert(part);
        }
        op.clone()
    }

    /// A plan with as many experts as are kept.
    fn routed(&mut self, plan: &Plan, router: Option<&Router>, manifest: &Manifest) -> Plan {
        let ops = plan.ops().iter().map(|op| match router {
            Some(router) => self.of_router(op, router, manifest),
            None => self.whole(op),
        });
        let ops = ops.collect();
        Plan::over(plan.rows(), ops)
    }

    fn of_router(&mut self, op: &Op, router: &Router, manifest: &Manifest) -> Op {
        let Router { logits, n_kept } = *router;
        match op {
            Op::MatMul(product) if product.out == logits => {
                self.rows.insert(product.weight, Some(n_kept));
                if let Some(bias) = product.bias {
                    let part = VectorPart { n_values: Some(n_kept), is_gain: false };
                    self.vectors.insert(bias.0, part);
                }
                Op::MatMul(MatMul { out: logits.narrow(0, n_kept), ..product.clone() })
            }
            Op::Route(route) => {
                if let RouterKind::SigmoidGrouped { correction, .. } = route.kind {
                    let part = VectorPart { n_values: Some(n_kept), is_gain: false };
                    self.vectors.insert(correction.0, part);
                }
                Op::Route(Route { logits: logits.narrow(0, n_kept), ..route.clone() })
            }
            Op::ExpertFfn(ExpertFfn { biases: Some(biases), .. }) => {
                for id in ExpertBiases::all(biases) {
                    let n_of_each = manifest.vector(id).n_values() / logits.head_dim;
                    let n_values = Some(n_of_each * n_kept);
                    self.vectors.insert(id.0, VectorPart { n_values, is_gain: false });
                }
                op.clone()
            }
            other => self.whole(other),
        }
    }
}

/// The router of a layer.
#[derive(Clone, Copy, Debug)]
struct Router {
    logits: Heads,
    /// Experts among which it chooses.
    n_kept: usize,
}

impl Router {
    fn of(mixer: &Plan) -> Option<Self> {
        mixer.ops().iter().find_map(|op| match op {
            Op::Route(route) if route.purpose == Purpose::Use => {
                Some(Self { logits: route.logits, n_kept: n_kept(route) })
            }
            _ => None,
        })
    }
}

/// As few experts as leave a choice in every group.
fn n_kept(route: &Route) -> usize {
    let n_wanted = EXPERTS_PER_CHOICE * route.top_k;
    let n_kept = match route.kind {
        RouterKind::Softmax { .. } => n_wanted,
        RouterKind::SigmoidGrouped { n_groups, n_groups_kept, .. } => {
            // The two best of a group count.
            let n_of_group = n_wanted.div_ceil(n_groups_kept.max(1)).max(2);
            n_of_group * n_groups
        }
    };
    n_kept.min(route.logits.head_dim)
}

fn layer(
    cut: &mut Cut,
    values: &mut Values,
    (idx, plan): (LayerIdx, &LayerPlan),
    manifest: &Manifest,
) -> Result<Layer> {
    let router = Router::of(&plan.mixer);
    let mixer = cut.routed(&plan.mixer, router.as_ref(), manifest);
    let bank = manifest.bank(idx);
    let (Some(moe), Some(router), Some(bank)) = (&plan.moe, router, bank) else {
        return Ok(Layer { idx, mixer, sparse: None });
    };
    let MoePlan { shared, experts, combine, whole, .. } = moe;
    let mut of = |plan: &Plan| cut.routed(plan, Some(&router), manifest);
    let [shared, experts, combine, whole] = [of(shared), of(experts), of(combine), of(whole)];
    let ExpertLayout { gate, up, down } = bank.layout;
    // Rows of gate and up that take turns are put apart while they are copied to a device.
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
    let sparse = Some(Sparse { shared, experts, combine, whole, layout, records });
    Ok(Layer { idx, mixer, sparse })
}

/// Random weights of all that is used. What is constant in the model stays as it is.
fn weights(cut: &Cut, values: &mut Values, manifest: &Manifest) -> Result<Weights> {
    let mut weights = Weights::default();
    for (idx, source) in manifest.matrices.iter().enumerate() {
        let layout = match cut.rows.get(&MatrixId(idx)) {
            None => UNUSED,
            Some(None) => source.layout,
            Some(Some(n_rows)) => {
                MatrixLayout { n_rows: source.layout.n_rows.min(*n_rows), ..source.layout }
            }
        };
        weights.push_matrix(values.matrix(layout)?);
    }
    for (idx, source) in manifest.vectors.iter().enumerate() {
        let Some(part) = cut.vectors.get(&idx) else {
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
