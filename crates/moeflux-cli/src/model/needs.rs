//! The bytes that running a blueprint needs: to be held, and to be read for a token.
//!
//! **Invariant:** counted from the bound matrices, like the numbers of `inspect`; independent of
//! machines.

use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::budget::step_bytes;
use moeflux::provider::config::N_ROWS_DEFAULT;
use moeflux::provider::families::ShardedExperts;
use moeflux::provider::ids::MatrixId;
use moeflux::provider::ops::{KvKind, LayerState, Op};
use moeflux::provider::spec::{MixerSpec, MlaSpec, PositionChoice};
use moeflux::provider::weights::ExpertBank;
use moeflux::{Arithmetic, ByteCount, Error, Result};
use moeflux_kernels::{MatrixKind, MatrixLayout};

/// The format of keys and values in the default arithmetic.
pub(crate) const KV_KIND: KvKind = Arithmetic::Int8.kv_kind();

/// The routed experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SparseLayer {
    /// The number of experts.
    pub(crate) n_experts: u64,
    /// The experts used by a token.
    pub(crate) top_k: u64,
    /// Bytes of one expert, as stored.
    pub(crate) expert_bytes: u64,
    /// If several machines share the experts: inner values of one use, over all machines.
    pub(crate) n_inner: u64,
    /// If several machines share the experts: columns of the sum.
    pub(crate) n_hidden: u64,
}

impl SparseLayer {
    /// Returns the expected number of experts that `n_rows` rows choose if all are equally likely.
    pub(crate) fn n_chosen(&self, n_rows: f64) -> f64 {
        let left_out = 1.0 - float(self.top_k) / float(self.n_experts.max(1));
        float(self.n_experts) * (1.0 - left_out.powf(n_rows))
    }
}

/// The cost of matrix products for a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProductCost {
    /// Weights that are read, as stored.
    pub(crate) n_bytes: u64,
    /// Multiplications and additions.
    pub(crate) n_operations: u64,
}

/// The costs by kind of kernel: a CPU multiplies quantised weights as integers, other weights in
/// f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProductCosts {
    /// Affine quantisation and blocks; the bytes include vectors.
    pub(crate) codes: ProductCost,
    /// FP8.
    pub(crate) floats: ProductCost,
    /// Unquantised weights.
    pub(crate) plain: ProductCost,
}

impl ProductCosts {
    fn add(&mut self, layout: &MatrixLayout, times: u64, n_bytes: u64) {
        let cost = match layout.kind {
            MatrixKind::Affine(_) | MatrixKind::Block(_) => &mut self.codes,
            MatrixKind::Fp8(_) => &mut self.floats,
            MatrixKind::Float(_) => &mut self.plain,
        };
        cost.n_bytes += times * n_bytes;
        cost.n_operations += times * 2 * n_values(layout);
    }

    /// Returns the bytes of all kinds.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.codes.n_bytes + self.floats.n_bytes + self.plain.n_bytes
    }

    /// Returns the operations of all kinds.
    pub(crate) fn n_operations(&self) -> u64 {
        self.codes.n_operations + self.floats.n_operations + self.plain.n_operations
    }
}

/// The requirements of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Weights that stay in memory.
    pub(crate) resident_bytes: u64,
    /// The part of these that a token uses: all but the other rows of an embedding table.
    pub(crate) resident: ProductCosts,
    /// The part of that which is used only for tokens whose logits are requested: in a prompt, the
    /// last one.
    pub(crate) head: ProductCosts,
    /// The routed experts that a token uses.
    pub(crate) routed: ProductCosts,
    /// The layers with experts.
    pub(crate) sparse_layers: Vec<SparseLayer>,
    /// Number of layers.
    pub(crate) n_layers: u64,
    /// Keys and values of one position.
    pub(crate) kv_bytes_per_position: u64,
    /// Recurrent state of a session.
    pub(crate) state_bytes: u64,
    /// Multiplications and additions of attention and of indexers, for each position that a token
    /// sees.
    pub(crate) attention_operations: u64,
    /// Attention of layers that choose positions.
    pub(crate) chosen: ChosenAttention,
    /// Operations on recurrent states, for a token.
    pub(crate) state_operations: u64,
    /// Activations of one row of a step.
    pub(crate) workspace_bytes_per_row: u64,
    /// Other activations of a step.
    pub(crate) workspace_fixed_bytes: u64,
    /// The longest context.
    pub(crate) context_max: u64,
}

/// Attention of layers that choose positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChosenAttention {
    /// Positions that are chosen.
    pub(crate) n_positions: u64,
    /// Multiplications and additions for each of them.
    pub(crate) operations: u64,
    /// Keys and values of a position.
    pub(crate) n_bytes: u64,
}

impl ChosenAttention {
    fn new(blueprint: &Blueprint) -> Self {
        let mut chosen = Self::default();
        for layer in &blueprint.spec.layers {
            let MixerSpec::Mla(mla) = &layer.mixer else { continue };
            let Some(choice) = mla.choice else { continue };
            let (latent_cols, rope_cols) = (mla.kv_rank, mla.rope_dim);
            let state = LayerState::Latent { latent_cols, rope_cols, index_cols: 0 };
            chosen.n_positions = choice.n_chosen() as u64;
            chosen.operations += latent_operations(mla);
            chosen.n_bytes += state.bytes_per_position(KV_KIND) as u64;
        }
        chosen
    }
}

impl Needs {
    /// Returns the operations of the attention of a token that sees `n_seen` positions.
    pub(crate) fn attention_operations_over(&self, n_seen: f64) -> f64 {
        let n_chosen = n_seen.min(float(self.chosen.n_positions));
        float(self.attention_operations) * n_seen + float(self.chosen.operations) * n_chosen
    }

    /// Returns the bytes of keys and values that it reads.
    pub(crate) fn attention_bytes_over(&self, n_seen: u64) -> u64 {
        let n_unread = n_seen.saturating_sub(self.chosen.n_positions);
        let all = self.kv_bytes_per_position.saturating_mul(n_seen);
        all.saturating_sub(self.chosen.n_bytes.saturating_mul(n_unread))
    }

    /// Counts the requirements of a model.
    pub(crate) fn new(blueprint: &Blueprint) -> Self {
        let Blueprint { spec, plan, manifest, .. } = blueprint;
        let sparse_layer = |bank: &ExpertBank| {
            let moe = plan.layers[bank.layer.0].moe.as_ref();
            let sharded = moe.and_then(|moe| moe.sharded.as_ref());
            let n_hidden = |it: &ShardedExperts| it.sums.iter().map(|cols| cols.head_dim).sum();
            SparseLayer {
                n_experts: bank.n_experts as u64,
                top_k: spec.layers[bank.layer.0].ffn.top_k() as u64,
                expert_bytes: bank.layout.stored_bytes(),
                n_inner: sharded.map_or(0, |it| it.n_inner) as u64,
                n_hidden: sharded.map_or(0, n_hidden) as u64,
            }
        };
        let mut routed = ProductCosts::default();
        for bank in &manifest.banks {
            for span in [bank.layout.gate, bank.layout.up, bank.layout.down] {
                let n_bytes = span.layout.total_bytes() as u64;
                routed.add(&span.layout, sparse_layer(bank).top_k, n_bytes);
            }
        }
        let workspace_bytes = |n_rows| plan.workspace.bytes(n_rows);
        let sum = |of: fn(&MixerSpec) -> u64| spec.layers.iter().map(|it| of(&it.mixer)).sum();
        Self {
            resident_bytes: manifest.resident_bytes(),
            resident: resident_costs(blueprint),
            head: head_costs(blueprint),
            routed,
            sparse_layers: manifest.banks.iter().map(sparse_layer).collect(),
            n_layers: spec.layers.len() as u64,
            kv_bytes_per_position: plan.state.bytes_per_position(KV_KIND),
            state_bytes: plan.state.fixed_bytes(),
            attention_operations: sum(attention_operations),
            chosen: ChosenAttention::new(blueprint),
            state_operations: sum(state_operations),
            workspace_bytes_per_row: workspace_bytes(1) - workspace_bytes(0),
            workspace_fixed_bytes: workspace_bytes(0),
            context_max: spec.context_max as u64,
        }
    }

    fn sum(&self, of_layer: impl Fn(&SparseLayer) -> u64) -> u64 {
        self.sparse_layers.iter().map(of_layer).fold(0, u64::saturating_add)
    }

    /// Returns whether each layer has one expert: the feed-forward of a dense model's layer, which
    /// every token uses.
    pub(crate) fn are_layers_streamed(&self) -> bool {
        !self.sparse_layers.is_empty() && self.sparse_layers.iter().all(|it| it.n_experts == 1)
    }

    /// Returns the routed experts of all layers.
    pub(crate) fn n_experts(&self) -> u64 {
        self.sum(|it| it.n_experts)
    }

    /// Returns the routed experts that a token chooses.
    pub(crate) fn n_experts_per_token(&self) -> u64 {
        self.sum(|it| it.top_k)
    }

    /// Returns the bytes of all routed experts, as stored.
    pub(crate) fn experts_bytes(&self) -> u64 {
        self.sum(|it| it.n_experts * it.expert_bytes)
    }

    /// Returns the bytes of the experts that a token chooses, as stored.
    pub(crate) fn routed_bytes(&self) -> u64 {
        self.sum(|it| it.top_k * it.expert_bytes)
    }

    /// Returns the expected bytes of the experts that a step of `n_rows` tokens chooses if all are
    /// equally likely.
    pub(crate) fn chosen_bytes(&self, n_rows: u64) -> f64 {
        let of_layer = |it: &SparseLayer| float(it.expert_bytes) * it.n_chosen(float(n_rows));
        self.sparse_layers.iter().map(of_layer).sum()
    }

    /// Returns the bytes of keys, values and recurrent state of a session.
    pub(crate) fn session_bytes(&self, n_positions: u64) -> u64 {
        self.kv_bytes_per_position.saturating_mul(n_positions).saturating_add(self.state_bytes)
    }

    /// Refuses GPU memory that is too small for the weights that every token needs. `allowed_by` is
    /// the text before the amount.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] with both amounts.
    pub(crate) fn check_gpu_memory(&self, gpu_bytes: u64, allowed_by: &str) -> Result<()> {
        if gpu_bytes >= self.resident_bytes {
            return Ok(());
        }
        let [told, needed] = [gpu_bytes, self.resident_bytes].map(ByteCount);
        Err(Error::Input(format!(
            "{allowed_by} {told}, and the weights that every token needs are {needed}: give the \
             GPU more than that, or leave it out"
        )))
    }

    /// Returns the memory of a device that holds the whole model, with steps of the default length.
    /// On a device, keys and values take twice as much.
    pub(crate) fn all_bytes_on_device(&self, context: u64) -> u64 {
        let rows_bytes = self.workspace_bytes_per_row.saturating_mul(N_ROWS_DEFAULT as u64);
        let kv_bytes = self.kv_bytes_per_position.saturating_mul(context);
        self.resident_bytes
            .saturating_add(self.experts_bytes())
            .saturating_add(self.session_bytes(context))
            .saturating_add(kv_bytes)
            .saturating_add(step_bytes(rows_bytes.saturating_add(self.workspace_fixed_bytes)))
    }
}

/// Returns the costs that every token causes. An embedding table that is also the output matrix is
/// read completely; of any other, one row is read.
fn resident_costs(blueprint: &Blueprint) -> ProductCosts {
    let Blueprint { plan, manifest, .. } = blueprint;
    let table = plan.embed.ops().iter().find_map(|op| match op {
        Op::Embed(embed) => Some(embed.table),
        _ => None,
    });
    let is_head = |table| plan.head.ops().iter().flat_map(Op::matrices).any(|used| used == table);
    let table = table.filter(|table| !is_head(*table));
    let mut costs = ProductCosts::default();
    let mut matrix_bytes = 0;
    for (matrix_idx, matrix) in manifest.matrices.iter().enumerate() {
        let n_bytes = matrix.layout.total_bytes() as u64;
        matrix_bytes += n_bytes;
        if table == Some(MatrixId(matrix_idx)) {
            costs.codes.n_bytes += n_bytes / (matrix.layout.n_rows as u64).max(1);
        } else {
            costs.add(&matrix.layout, 1, n_bytes);
        }
    }
    costs.codes.n_bytes += manifest.resident_bytes() - matrix_bytes;
    costs
}

/// Returns the costs of turning a row into logits.
fn head_costs(blueprint: &Blueprint) -> ProductCosts {
    let Blueprint { plan, manifest, .. } = blueprint;
    let mut costs = ProductCosts::default();
    for matrix in plan.head.ops().iter().flat_map(Op::matrices) {
        let layout = &manifest.matrices[matrix.0].layout;
        costs.add(layout, 1, layout.total_bytes() as u64);
    }
    costs
}

/// Returns the operations for scores and sums of all positions that a token sees, a multiplication
/// and an addition for each channel of each head.
fn attention_operations(mixer: &MixerSpec) -> u64 {
    match mixer {
        MixerSpec::Attention(it) => 4 * (it.n_heads * it.head_dim) as u64,
        MixerSpec::Mla(it) => match it.choice {
            None => latent_operations(it),
            Some(PositionChoice::Own(indexer)) => 2 * (indexer.n_heads * indexer.head_dim) as u64,
            Some(PositionChoice::Shared { .. }) => 0,
        },
        MixerSpec::GatedDelta(_) => 0,
    }
}

/// Returns the operations for each position of latent attention, which compares in the latent.
fn latent_operations(mla: &MlaSpec) -> u64 {
    2 * (mla.n_heads * (2 * mla.kv_rank + mla.rope_dim)) as u64
}

/// Returns the operations on recurrent states: each head's state is read with a key, changed, and
/// read with a query.
fn state_operations(mixer: &MixerSpec) -> u64 {
    match mixer {
        MixerSpec::GatedDelta(it) => 6 * (it.n_v_heads * it.k_dim * it.v_dim) as u64,
        MixerSpec::Attention(_) | MixerSpec::Mla(_) => 0,
    }
}

fn n_values(layout: &MatrixLayout) -> u64 {
    layout.n_rows as u64 * layout.n_cols as u64
}

/// Converts a count, for shares and rates.
#[expect(clippy::cast_precision_loss, reason = "three digits are printed")]
pub(crate) fn float(n: u64) -> f64 {
    n as f64
}

#[cfg(test)]
mod tests {
    use moeflux::provider::model::{Headers, Model};
    use std::path::Path;

    use super::*;

    #[test]
    fn blocks_of_gguf_files_are_multiplied_as_integers() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden");
        let (blueprint, _) =
            Model::open(golden.join("gguf-qwen3moe-k/model.gguf")).unwrap().into_parts();
        let routed = Needs::new(&blueprint).routed;
        assert_eq!((routed.floats.n_operations, routed.codes.n_operations > 0), (0, true));
    }
}
