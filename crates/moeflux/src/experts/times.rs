//! How long each layer of an answer's step took, and how much of that was waiting for the drive.
//!
//! **Invariant:** recording allocates nothing, takes no lock, and reads no clock that streaming
//! does not read anyway. A step that failed or was given up is not shown.

use std::time::Duration;

use crate::ids::LayerIdx;

/// The times of a step of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepTimes {
    /// The layers that have experts, in order.
    pub layers: Vec<LayerTime>,
}

/// The time of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerTime {
    /// The layer.
    pub layer: usize,
    /// Time since the layer with experts before it was done, or since the step began.
    pub time: Duration,
    /// The part of it for which computing waited for the drive.
    pub wait: Duration,
    /// Experts that were in memory when they were requested.
    pub n_found: u64,
    /// Experts that had to be read, or were being read.
    pub n_read: u64,
}

/// Totals of an expert stream, of which a layer has a part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamTotals {
    pub(super) now: Duration,
    pub(super) read_wait: Duration,
    pub(super) n_found: u64,
    pub(super) n_read: u64,
}

/// Records the step that runs, and keeps the last whole one.
#[derive(Debug, Default)]
pub(super) struct StepRecorder {
    /// Whether the step that runs is one of answers.
    is_recording: bool,
    last_layer: Option<usize>,
    before: StreamTotals,
    running: Vec<LayerTime>,
    whole: Vec<LayerTime>,
}

impl StepRecorder {
    /// Creates a recorder for layers with these numbers of experts.
    pub(super) fn new(n_experts: &[usize]) -> Self {
        let n_layers = n_experts.iter().filter(|n| **n > 0).count();
        Self {
            last_layer: n_experts.iter().rposition(|n| *n > 0),
            running: Vec::with_capacity(n_layers),
            whole: Vec::with_capacity(n_layers),
            ..Self::default()
        }
    }

    /// Begins a step.
    pub(super) fn begin(&mut self, is_of_answers: bool, totals: StreamTotals) {
        self.is_recording = is_of_answers;
        self.before = totals;
        self.running.clear();
    }

    /// Ends a layer. After the last one, the step is whole.
    pub(super) fn end_layer(&mut self, LayerIdx(layer): LayerIdx, totals: StreamTotals) {
        if !self.is_recording {
            return;
        }
        let before = std::mem::replace(&mut self.before, totals);
        self.running.push(LayerTime {
            layer,
            time: totals.now.saturating_sub(before.now),
            wait: totals.read_wait.saturating_sub(before.read_wait),
            n_found: totals.n_found.saturating_sub(before.n_found),
            n_read: totals.n_read.saturating_sub(before.n_read),
        });
        if self.last_layer == Some(layer) {
            std::mem::swap(&mut self.running, &mut self.whole);
            self.is_recording = false;
        }
    }

    /// Returns the last whole step, if there was one.
    pub(super) fn last(&self) -> Option<StepTimes> {
        (!self.whole.is_empty()).then(|| StepTimes { layers: self.whole.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(ms: u64, wait_ms: u64, n_found: u64, n_read: u64) -> StreamTotals {
        let [now, read_wait] = [ms, wait_ms].map(Duration::from_millis);
        StreamTotals { now, read_wait, n_found, n_read }
    }

    #[test]
    fn only_whole_steps_of_answers_are_kept() {
        let mut recorder = StepRecorder::new(&[0, 8, 8, 0]);
        let layers = [LayerIdx(1), LayerIdx(2)];
        recorder.begin(true, totals(100, 10, 5, 5));
        recorder.end_layer(layers[0], totals(103, 11, 6, 6));
        assert_eq!(recorder.last(), None, "it was given up");
        recorder.begin(true, totals(200, 20, 10, 10));
        recorder.end_layer(layers[0], totals(204, 20, 12, 10));
        recorder.end_layer(layers[1], totals(210, 23, 13, 11));
        let layer = |layer, ms, wait_ms, n_found, n_read| LayerTime {
            layer,
            time: Duration::from_millis(ms),
            wait: Duration::from_millis(wait_ms),
            n_found,
            n_read,
        };
        let expected = vec![layer(1, 4, 0, 2, 0), layer(2, 6, 3, 1, 1)];
        assert_eq!(recorder.last(), Some(StepTimes { layers: expected.clone() }));
        // Prompts are not shown, and a step that fails in its middle does not replace a whole one.
        recorder.begin(false, totals(300, 30, 0, 0));
        layers.iter().for_each(|layer| recorder.end_layer(*layer, totals(400, 40, 9, 9)));
        recorder.begin(true, totals(500, 50, 0, 0));
        recorder.end_layer(layers[0], totals(501, 50, 0, 0));
        assert_eq!(recorder.last(), Some(StepTimes { layers: expected }));
    }
}
