//! Runs a reduced model on a backend, for a prompt and a few further tokens, and records the
//! outputs.
//!
//! **Invariant:** every layer starts from the same inputs on every backend, so that a difference is
//! attributable to its layer.

use std::ops::Range;

use moeflux::provider::backend::Backend;
use moeflux::provider::error::Result;
use moeflux::provider::experts::{Arrived, ArrivedExpert, SlotExperts};
use moeflux::provider::ids::{ExpertIdx, Position, StateId, TokenId};
use moeflux::provider::ops::{Batch, Heads, N_OUTPUTS_MAX, Purpose, Row, RowKind, Segment};
use moeflux_io::{SlotIdx, SlotMemory};

use super::miniature::{N_ANSWER, N_PROMPT, ReducedExperts, ReducedLayer, ReducedModel};

/// Slab size of the engine.
const SLAB_BYTES: usize = 64 << 20;

/// Location of the experts.
#[derive(Debug)]
pub(super) enum ExpertSource {
    /// On the device, where they were stored permanently.
    Device,
    /// In memory, from which they are copied.
    Memory,
    /// In slots that a device reads in place.
    Slots(FilledSlots),
}

/// Output of a layer or the head.
#[derive(Debug)]
pub(super) struct CheckOutput {
    /// For example "layer 3, a prompt".
    pub(super) what: String,
    /// Output rows.
    pub(super) rows: Vec<Vec<f32>>,
    /// Experts chosen for each row, if the layer has a router.
    pub(super) experts: Vec<Vec<ExpertIdx>>,
}

/// Experts in slots, in order of the layers that have experts.
#[derive(Debug)]
pub(super) struct FilledSlots {
    memory: SlotMemory,
    /// First slot of each layer.
    first: Vec<Option<usize>>,
    pub(super) stride_bytes: usize,
}

impl FilledSlots {
    /// Fills slots with the experts; `None` if the system lacks memory.
    pub(super) fn new(layers: &[ReducedLayer]) -> Option<Self> {
        let routed = layers.iter().filter_map(|layer| layer.routed.as_ref());
        let slot_bytes = routed.map(|it| it.layout.record_bytes()).max()?;
        let mut memory = SlotMemory::new(slot_bytes, SLAB_BYTES);
        let (mut first, mut next, mut stride_bytes) = (Vec::new(), 0, slot_bytes);
        for layer in layers {
            first.push(layer.routed.as_ref().map(|_| next));
            let Some(routed) = &layer.routed else { continue };
            for expert in (0..routed.n_experts()).map(ExpertIdx) {
                while memory.n_slots() <= next {
                    memory.grow()?;
                }
                let mut filling = memory.begin_fill(SlotIdx(next));
                stride_bytes = filling.len_bytes();
                let record = routed.record(expert);
                let mut piece = filling.take(0..stride_bytes);
                piece.rest_mut()[..record.len()].copy_from_slice(record);
                drop(piece);
                memory.finish(filling);
                next += 1;
            }
        }
        Some(Self { memory, first, stride_bytes })
    }
}

/// A run on one backend.
struct CheckRun<'a> {
    reduced: &'a ReducedModel,
    backend: &'a mut dyn Backend,
    experts: &'a ExpertSource,
    state: StateId,
    outputs: Vec<CheckOutput>,
}

/// Returns everything that the backend computes for the reduced model.
///
/// # Errors
///
/// Errors of the backend.
pub(super) fn run(
    reduced: &ReducedModel,
    backend: &mut dyn Backend,
    experts: &ExpertSource,
) -> Result<Vec<CheckOutput>> {
    let n_positions = N_PROMPT + N_ANSWER;
    let state = backend.states_mut().create_state(&reduced.state, n_positions)?;
    backend.states_mut().reserve_positions(state, &(0..n_positions))?;
    let mut run = CheckRun { reduced, backend, experts, state, outputs: Vec::new() };
    run.step(0..N_PROMPT, RowKind::Prefill)?;
    for position in N_PROMPT..n_positions {
        run.step(position..position + 1, RowKind::Decode)?;
    }
    run.backend.states_mut().drop_state(state);
    Ok(run.outputs)
}

impl CheckRun<'_> {
    fn step(&mut self, positions: Range<usize>, kind: RowKind) -> Result<()> {
        let what = match kind {
            RowKind::Prefill => format!("a prompt of {N_PROMPT} tokens"),
            RowKind::Decode => format!("the answer's token {}", positions.end - N_PROMPT),
        };
        let n_tokens = self.reduced.n_tokens;
        let token = |at: usize| TokenId(u32::try_from(at % n_tokens).expect("few tokens"));
        let rows: Vec<Row> =
            positions.map(|at| Row { token: token(at), position: Position(at) }).collect();
        let segments = [Segment::new(self.state, 0..rows.len(), kind)];
        let outputs: Vec<usize> = (0..rows.len().min(N_OUTPUTS_MAX)).collect();
        let batch = Batch { rows: &rows, segments: &segments, outputs: &outputs };
        for (place, layer) in self.reduced.layers.iter().enumerate() {
            self.backend.submit(&self.reduced.embed, &batch)?;
            self.layer(&batch, place)?;
            let rows = self.rows(self.reduced.stream, batch.rows.len())?;
            let experts = self.choices(layer)?;
            let what = format!("layer {}, {what}", layer.idx.0);
            self.outputs.push(CheckOutput { what, rows, experts });
        }
        self.backend.submit(&self.reduced.embed, &batch)?;
        self.backend.submit(&self.reduced.head, &batch)?;
        let rows = self.rows(self.reduced.logits, outputs.len())?;
        let what = format!("the head, {what}");
        self.outputs.push(CheckOutput { what, rows, experts: Vec::new() });
        self.backend.states_mut().commit_state(self.state);
        Ok(())
    }

    fn layer(&mut self, batch: &Batch<'_>, place: usize) -> Result<()> {
        let layer = &self.reduced.layers[place];
        let Some(routed) = &layer.routed else {
            return self.backend.submit(&layer.mixer, batch);
        };
        if matches!(self.experts, ExpertSource::Device) {
            return self.backend.submit(&routed.whole, batch);
        }
        self.backend.submit(&layer.mixer, batch)?;
        let mut chosen = self.backend.routes(Purpose::Compute)?.experts.clone();
        chosen.sort_unstable();
        chosen.dedup();
        self.backend.submit(&routed.shared, batch)?;
        self.experts(routed, place, &chosen)?;
        self.backend.submit(&routed.combine, batch)
    }

    fn experts(
        &mut self,
        routed: &ReducedExperts,
        place: usize,
        chosen: &[ExpertIdx],
    ) -> Result<()> {
        if let ExpertSource::Slots(FilledSlots { memory, first, .. }) = self.experts {
            let first = first[place].expect("a layer with experts has slots");
            let slots: Vec<_> =
                chosen.iter().map(|expert| (*expert, SlotIdx(first + expert.0))).collect();
            let experts = SlotExperts { memory, layout: &routed.layout, slots: &slots };
            return self.backend.submit_experts(&routed.experts, &Arrived::in_slots(experts));
        }
        let view =
            |expert: &ExpertIdx| ArrivedExpert { expert: *expert, view: routed.view(*expert) };
        let views: Vec<_> = chosen.iter().map(view).collect();
        self.backend.submit_experts(&routed.experts, &Arrived::ascending(&views))
    }

    /// Returns the experts that the router of a layer chose, row by row.
    fn choices(&mut self, layer: &ReducedLayer) -> Result<Vec<Vec<ExpertIdx>>> {
        if layer.routed.is_none() {
            return Ok(Vec::new());
        }
        let routes = self.backend.routes(Purpose::Compute)?;
        let mut rows: Vec<Vec<ExpertIdx>> =
            routes.experts.chunks(routes.top_k).map(<[ExpertIdx]>::to_vec).collect();
        rows.iter_mut().for_each(|row| row.sort_unstable());
        Ok(rows)
    }

    fn rows(&mut self, heads: Heads, n_rows: usize) -> Result<Vec<Vec<f32>>> {
        let row = |row_idx| {
            let mut row = vec![0.0; heads.end_col()];
            self.backend.read_row(heads.buffer, row_idx, &mut row).map(|()| row)
        };
        (0..n_rows).map(row).collect()
    }
}
