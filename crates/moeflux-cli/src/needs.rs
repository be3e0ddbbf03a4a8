//! A blueprint as the bytes that running it needs: to be held, and to be read for a token.
//!
//! **Invariant:** counted from the matrices that were bound, like `inspect`'s numbers; knows no
//! machine.

use moeflux::Arithmetic;
use moeflux::provider::blueprint::Blueprint;
use moeflux::provider::budget::step_bytes;
use moeflux::provider::config::N_ROWS_DEFAULT;
use moeflux::provider::ids::ExpertIdx;
use moeflux::provider::ops::{KvKind, Op};
use moeflux::provider::spec::FfnSpec;
use moeflux::provider::weights::{BankPart, ExpertBank, Extent, Manifest, Origin};
use moeflux_io::SLOT_ALIGN;
use moeflux_kernels::MatrixLayout;

/// How the default arithmetic keeps keys and values.
pub(crate) const KV_KIND: KvKind = Arithmetic::Int8.kv_kind();

/// Whole blocks around an extent that is read past the page cache.
const BLOCK_BYTES: u64 = 4096;

/// The routed experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SparseLayer {
    /// Its experts.
    pub(crate) n_experts: u64,
    /// Of these, for each token.
    pub(crate) top_k: u64,
    /// One of them, as stored.
    pub(crate) expert_bytes: u64,
}

/// What a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Weights that stay in memory.
    pub(crate) resident_bytes: u64,
    /// Of these, what a token reads: all but the other rows of a table of embeddings.
    pub(crate) resident_read_bytes: u64,
    /// The layers with experts.
    pub(crate) sparse_layers: Vec<SparseLayer>,
    /// Memory for one expert: a slot takes any of them.
    pub(crate) slot_bytes: u64,
    /// Keys and values of one position.
    pub(crate) kv_bytes_per_position: u64,
    /// Recurrent state of a session.
    pub(crate) state_bytes: u64,
    /// Activations of one row of a step.
    pub(crate) workspace_bytes_per_row: u64,
    /// Activations that a step needs besides.
    pub(crate) workspace_fixed_bytes: u64,
    /// Multiplications and additions for one token, attention to its context aside.
    pub(crate) operations_per_token: u64,
    /// The longest context.
    pub(crate) context_max: u64,
}

impl Needs {
    /// Of this model.
    pub(crate) fn new(blueprint: &Blueprint) -> Self {
        let Blueprint { spec, plan, manifest } = blueprint;
        let sparse_layer = |bank: &ExpertBank| SparseLayer {
            n_experts: bank.n_experts as u64,
            top_k: match &spec.layers[bank.layer.0].ffn {
                FfnSpec::Moe(moe) => moe.top_k as u64,
                FfnSpec::Dense { .. } => 0,
            },
            expert_bytes: bank.layout.stored_bytes(),
        };
        let expert_weights = |bank: &ExpertBank| {
            let spans = [bank.layout.gate, bank.layout.up, bank.layout.down];
            let weights: u64 = spans.iter().map(|span| n_values(&span.layout)).sum();
            sparse_layer(bank).top_k * weights
        };
        let matrices: u64 = manifest.matrices.iter().map(|it| n_values(&it.layout)).sum();
        let experts: u64 = manifest.banks.iter().map(expert_weights).sum();
        let unread = unread_embeddings(blueprint);
        let workspace_bytes = |n_rows| plan.workspace.bytes(n_rows);
        Self {
            resident_bytes: manifest.resident_bytes(),
            resident_read_bytes: manifest.resident_bytes() - unread.n_bytes,
            sparse_layers: manifest.banks.iter().map(sparse_layer).collect(),
            slot_bytes: slot_bytes(manifest),
            kv_bytes_per_position: plan.state.bytes_per_position(KV_KIND),
            state_bytes: plan.state.fixed_bytes(),
            workspace_bytes_per_row: workspace_bytes(1) - workspace_bytes(0),
            workspace_fixed_bytes: workspace_bytes(0),
            operations_per_token: 2 * (matrices - unread.n_weights + experts),
            context_max: spec.context_max as u64,
        }
    }

    fn sum(&self, of_layer: impl Fn(&SparseLayer) -> u64) -> u64 {
        self.sparse_layers.iter().map(of_layer).fold(0, u64::saturating_add)
    }

    /// Routed experts of all layers.
    pub(crate) fn n_experts(&self) -> u64 {
        self.sum(|it| it.n_experts)
    }

    /// Routed experts that a token chooses.
    pub(crate) fn n_experts_per_token(&self) -> u64 {
        self.sum(|it| it.top_k)
    }

    /// All routed experts, as stored.
    pub(crate) fn experts_bytes(&self) -> u64 {
        self.sum(|it| it.n_experts * it.expert_bytes)
    }

    /// What a token chooses, as stored.
    pub(crate) fn routed_bytes(&self) -> u64 {
        self.sum(|it| it.top_k * it.expert_bytes)
    }

    /// What a step of so many tokens chooses if every expert is as likely as any other.
    pub(crate) fn chosen_bytes(&self, n_rows: u64) -> f64 {
        let of_layer = |it: &SparseLayer| {
            let left_out = 1.0 - float(it.top_k) / float(it.n_experts.max(1));
            float(it.n_experts * it.expert_bytes) * (1.0 - left_out.powf(float(n_rows)))
        };
        self.sparse_layers.iter().map(of_layer).sum()
    }

    /// Slots for what a token chooses in a layer: with fewer the engine refuses.
    pub(crate) fn n_slots_min(&self) -> u64 {
        let chosen_max = self.sparse_layers.iter().map(|it| it.top_k).max().unwrap_or(0);
        chosen_max.min(self.n_experts())
    }

    /// Keys, values and recurrent state of a session.
    pub(crate) fn session_bytes(&self, n_positions: u64) -> u64 {
        self.kv_bytes_per_position.saturating_mul(n_positions).saturating_add(self.state_bytes)
    }

    /// Activations of steps of so many rows.
    pub(crate) fn workspace_bytes(&self, n_rows: u64) -> u64 {
        let rows_bytes = self.workspace_bytes_per_row.saturating_mul(n_rows);
        step_bytes(rows_bytes.saturating_add(self.workspace_fixed_bytes))
    }

    /// All but slots, for steps of the usual length.
    pub(crate) fn fixed_bytes(&self, context: u64) -> u64 {
        self.resident_bytes
            .saturating_add(self.session_bytes(context))
            .saturating_add(self.workspace_bytes(N_ROWS_DEFAULT as u64))
    }

    /// The smallest budget that works.
    pub(crate) fn least_bytes(&self, context: u64) -> u64 {
        self.fixed_bytes(context).saturating_add(self.n_slots_min() * self.slot_bytes)
    }

    /// Memory of a device that holds all of it. There, keys and values take twice as much.
    pub(crate) fn all_bytes_on_device(&self, context: u64) -> u64 {
        let kv_bytes = self.kv_bytes_per_position.saturating_mul(context);
        self.all_bytes(context).saturating_add(kv_bytes)
    }

    /// The budget from which on nothing is read from the drive any more.
    pub(crate) fn all_bytes(&self, context: u64) -> u64 {
        self.fixed_bytes(context).saturating_add(self.n_experts() * self.slot_bytes)
    }
}

/// Rows of a table of embeddings that a token does not read.
struct Unread {
    n_bytes: u64,
    n_weights: u64,
}

/// A table that is the output matrix too is read whole.
fn unread_embeddings(blueprint: &Blueprint) -> Unread {
    let table = blueprint.plan.embed.ops().iter().find_map(|op| match op {
        Op::Embed(embed) => Some(embed.table),
        _ => None,
    });
    let is_head = |table| {
        let ops = blueprint.plan.head.ops().iter();
        ops.flat_map(Op::matrices).any(|used| used == table)
    };
    match table.filter(|table| !is_head(*table)) {
        Some(table) => {
            let layout = &blueprint.manifest.matrix(table).layout;
            let n_rows = (layout.n_rows as u64).max(1);
            let others = |whole: u64| whole / n_rows * (n_rows - 1);
            let n_bytes = others(layout.total_bytes() as u64);
            Unread { n_bytes, n_weights: n_values(layout) }
        }
        None => Unread { n_bytes: 0, n_weights: 0 },
    }
}

fn n_values(layout: &MatrixLayout) -> u64 {
    layout.n_rows as u64 * layout.n_cols as u64
}

/// For shares and rates.
#[expect(clippy::cast_precision_loss, reason = "three digits are printed")]
pub(crate) fn float(n: u64) -> f64 {
    n as f64
}

/// The largest expert with what is read around it: a record of the packed form, or whole blocks
/// around up to nine extents. What does not exist is planned in the packed form.
fn slot_bytes(manifest: &Manifest) -> u64 {
    let is_imagined = matches!(manifest.origin, Origin::Imagined(_));
    let bytes = |bank: &ExpertBank| match bank.records {
        Some(records) => records.record_bytes as u64,
        None if is_imagined => bank.layout.record_bytes() as u64,
        None => bank.parts.iter().map(|part| part_span(bank, part)).sum(),
    };
    let largest = manifest.banks.iter().map(bytes).max().unwrap_or(0);
    largest.next_multiple_of(SLOT_ALIGN as u64)
}

/// Whole blocks around a part of an expert, where they are most.
fn part_span(bank: &ExpertBank, part: &BankPart) -> u64 {
    let blocks = |extent: Extent| {
        let end = (extent.offset_bytes + extent.len_bytes).next_multiple_of(BLOCK_BYTES);
        end - extent.offset_bytes / BLOCK_BYTES * BLOCK_BYTES
    };
    let experts = (0..bank.n_experts).map(ExpertIdx);
    experts.map(|expert| blocks(part.extent(expert))).max().unwrap_or(0)
}
