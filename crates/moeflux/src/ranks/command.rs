//! The operations of rank 0 on its device, encoded so that other ranks repeat them.
//!
//! **Invariant:** an encoded command is decoded to itself; anything else is refused.

use crate::backend::StatePart;
use crate::error::{Error, Result};
use crate::ids::{BufferId, LayerIdx, Position, StateId, TokenId};
use crate::ops::{Batch, Row, RowKind, Segment};

/// One call that changes a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RankCommand {
    /// Runs layers `first .. end` over these rows. All ranks exchange values in each sparse one.
    Layers {
        first: LayerIdx,
        end: LayerIdx,
        batch: OwnedBatch,
    },
    CreateState {
        state: StateId,
        context: usize,
    },
    Reserve {
        state: StateId,
        first: usize,
        end: usize,
    },
    Fork {
        from: StateId,
        state: StateId,
    },
    Drop {
        state: StateId,
    },
    Reset {
        state: StateId,
    },
    Commit {
        state: StateId,
    },
    SetMarks {
        state: StateId,
        n_marks: usize,
    },
    WriteState {
        state: StateId,
        part: StatePart,
        bytes: Vec<u8>,
    },
    SwapRows {
        buffer: BufferId,
        n_rows: usize,
    },
    /// Ends the job.
    End,
}

/// The rows of a step, without data that only rank 0 needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnedBatch {
    pub rows: Vec<Row>,
    pub segments: Vec<Segment>,
}

impl OwnedBatch {
    pub(crate) fn of(batch: &Batch<'_>) -> Self {
        Self { rows: batch.rows.to_vec(), segments: batch.segments.to_vec() }
    }

    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch { rows: &self.rows, segments: &self.segments, outputs: &[] }
    }
}

/// Writes a sequence of numbers.
struct CommandWriter(Vec<u8>);

impl CommandWriter {
    fn number(&mut self, number: usize) {
        self.0.extend_from_slice(&(number as u64).to_le_bytes());
    }

    fn state(&mut self, state: StateId) {
        self.0.extend_from_slice(&state.0.to_le_bytes());
    }
}

/// Reads a sequence of numbers.
struct CommandReader<'a>(&'a [u8]);

impl CommandReader<'_> {
    fn u64(&mut self) -> Option<u64> {
        let (head, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*head))
    }

    fn number(&mut self) -> Option<usize> {
        usize::try_from(self.u64()?).ok()
    }

    fn state(&mut self) -> Option<StateId> {
        self.u64().map(StateId)
    }

    /// Reads a number of items, and checks that at least `item_bytes` bytes are left for each.
    fn count(&mut self, item_bytes: usize) -> Option<usize> {
        let n = self.number()?;
        (n.checked_mul(item_bytes)? <= self.0.len()).then_some(n)
    }
}

impl RankCommand {
    /// Encodes the command.
    #[must_use]
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = CommandWriter(Vec::new());
        match self {
            Self::Layers { first, end, batch } => {
                [0, first.0, end.0].iter().for_each(|it| out.number(*it));
                write_batch(batch, &mut out);
            }
            Self::CreateState { state, context } => {
                out.number(1);
                out.state(*state);
                out.number(*context);
            }
            Self::Reserve { state, first, end } => {
                out.number(2);
                out.state(*state);
                [first, end].iter().for_each(|it| out.number(**it));
            }
            Self::Fork { from, state } => {
                out.number(3);
                [from, state].iter().for_each(|it| out.state(**it));
            }
            Self::Drop { state } => {
                out.number(4);
                out.state(*state);
            }
            Self::Reset { state } => {
                out.number(5);
                out.state(*state);
            }
            Self::Commit { state } => {
                out.number(6);
                out.state(*state);
            }
            Self::SetMarks { state, n_marks } => {
                out.number(7);
                out.state(*state);
                out.number(*n_marks);
            }
            Self::WriteState { state, part, bytes } => {
                out.number(8);
                out.state(*state);
                write_part(*part, &mut out);
                out.number(bytes.len());
                out.0.extend_from_slice(bytes);
            }
            Self::SwapRows { buffer, n_rows } => {
                [9, buffer.0, *n_rows].iter().for_each(|it| out.number(*it));
            }
            Self::End => out.number(10),
        }
        out.0
    }

    /// Decodes a command.
    ///
    /// # Errors
    ///
    /// [`Error::Machine`] if the bytes are not a command.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let mut reader = CommandReader(bytes);
        let command = read_command(&mut reader).filter(|_| reader.0.is_empty());
        command.ok_or_else(|| {
            let problem = format!("cannot decode a {}-byte order from rank 0", bytes.len());
            Error::Machine(problem)
        })
    }
}

fn write_batch(batch: &OwnedBatch, out: &mut CommandWriter) {
    out.number(batch.rows.len());
    for row in &batch.rows {
        out.number(row.token.0 as usize);
        out.number(row.position.0);
    }
    out.number(batch.segments.len());
    for Segment { state, rows, kind, marks, earlier } in &batch.segments {
        out.state(*state);
        [rows.start, rows.end, usize::from(*kind == RowKind::Prefill)]
            .iter()
            .for_each(|it| out.number(*it));
        out.number(marks.len());
        marks.iter().for_each(|mark| out.number(*mark));
        out.number(earlier.len());
        earlier.iter().for_each(|token| out.number(token.0 as usize));
    }
}

fn read_batch(reader: &mut CommandReader<'_>) -> Option<OwnedBatch> {
    let mut batch = OwnedBatch::default();
    for _ in 0..reader.count(16)? {
        let token = TokenId(u32::try_from(reader.u64()?).ok()?);
        batch.rows.push(Row { token, position: Position(reader.number()?) });
    }
    for _ in 0..reader.count(48)? {
        let (state, start, end) = (reader.state()?, reader.number()?, reader.number()?);
        let kind = if reader.number()? == 0 { RowKind::Decode } else { RowKind::Prefill };
        let n_marks = reader.count(8)?;
        let marks = (0..n_marks).map(|_| reader.number()).collect::<Option<_>>()?;
        let n_earlier = reader.count(8)?;
        let earlier = (0..n_earlier).map(|_| Some(TokenId(u32::try_from(reader.u64()?).ok()?)));
        let earlier = earlier.collect::<Option<_>>()?;
        batch.segments.push(Segment { state, rows: start..end, kind, marks, earlier });
    }
    Some(batch)
}

fn write_part(part: StatePart, out: &mut CommandWriter) {
    let numbers = match part {
        StatePart::Positions { layer, first, n } => [0, layer.0, first, n],
        StatePart::Recurrent { layer } => [1, layer.0, 0, 0],
        StatePart::Marked { layer, mark_idx } => [2, layer.0, mark_idx, 0],
    };
    numbers.iter().for_each(|it| out.number(*it));
}

fn read_part(reader: &mut CommandReader<'_>) -> Option<StatePart> {
    let (kind, layer) = (reader.number()?, LayerIdx(reader.number()?));
    let (a, b) = (reader.number()?, reader.number()?);
    match kind {
        0 => Some(StatePart::Positions { layer, first: a, n: b }),
        1 => Some(StatePart::Recurrent { layer }),
        2 => Some(StatePart::Marked { layer, mark_idx: a }),
        _ => None,
    }
}

fn read_command(reader: &mut CommandReader<'_>) -> Option<RankCommand> {
    Some(match reader.number()? {
        0 => {
            let (first, end) = (LayerIdx(reader.number()?), LayerIdx(reader.number()?));
            RankCommand::Layers { first, end, batch: read_batch(reader)? }
        }
        1 => RankCommand::CreateState { state: reader.state()?, context: reader.number()? },
        2 => {
            let (state, first) = (reader.state()?, reader.number()?);
            RankCommand::Reserve { state, first, end: reader.number()? }
        }
        3 => RankCommand::Fork { from: reader.state()?, state: reader.state()? },
        4 => RankCommand::Drop { state: reader.state()? },
        5 => RankCommand::Reset { state: reader.state()? },
        6 => RankCommand::Commit { state: reader.state()? },
        7 => RankCommand::SetMarks { state: reader.state()?, n_marks: reader.number()? },
        8 => {
            let (state, part) = (reader.state()?, read_part(reader)?);
            let n_bytes = reader.count(1)?;
            let (bytes, rest) = reader.0.split_at(n_bytes);
            reader.0 = rest;
            RankCommand::WriteState { state, part, bytes: bytes.to_vec() }
        }
        9 => RankCommand::SwapRows { buffer: BufferId(reader.number()?), n_rows: reader.number()? },
        10 => RankCommand::End,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands() -> Vec<RankCommand> {
        let state = StateId(7);
        let row = |at: usize| Row { token: TokenId(u32::MAX), position: Position(at) };
        let segment = Segment {
            marks: vec![1],
            earlier: vec![TokenId(3), TokenId(u32::MAX)],
            ..Segment::new(state, 0..2, RowKind::Prefill)
        };
        let batch = OwnedBatch { rows: vec![row(3), row(4)], segments: vec![segment] };
        let parts = [
            StatePart::Positions { layer: LayerIdx(1), first: 2, n: 3 },
            StatePart::Recurrent { layer: LayerIdx(4) },
            StatePart::Marked { layer: LayerIdx(5), mark_idx: 6 },
        ];
        let write = |part| RankCommand::WriteState { state, part, bytes: vec![1, 2, 3] };
        let mut commands = vec![
            RankCommand::Layers { first: LayerIdx(0), end: LayerIdx(9), batch },
            RankCommand::CreateState { state, context: 5 },
            RankCommand::Reserve { state, first: 1, end: 2 },
            RankCommand::Fork { from: state, state: StateId(8) },
            RankCommand::Drop { state },
            RankCommand::Reset { state },
            RankCommand::Commit { state },
            RankCommand::SetMarks { state, n_marks: 2 },
            RankCommand::SwapRows { buffer: BufferId(3), n_rows: 4 },
            RankCommand::End,
        ];
        commands.extend(parts.map(write));
        commands
    }

    #[test]
    fn orders_are_read_as_they_were_written() {
        for command in commands() {
            assert_eq!(RankCommand::read(&command.to_bytes()).unwrap(), command);
        }
    }

    #[test]
    fn truncated_and_longer_commands_are_refused() {
        for command in commands() {
            let bytes = command.to_bytes();
            for n_bytes in 0..bytes.len() {
                assert!(
                    RankCommand::read(&bytes[..n_bytes]).is_err(),
                    "{command:?} cut to {n_bytes}"
                );
            }
            assert!(RankCommand::read(&[&bytes[..], &[0]].concat()).is_err(), "{command:?}");
        }
    }

    #[test]
    fn a_false_count_allocates_nothing() {
        let mut bytes = RankCommand::Layers {
            first: LayerIdx(0),
            end: LayerIdx(1),
            batch: OwnedBatch::default(),
        }
        .to_bytes();
        bytes[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(RankCommand::read(&bytes).is_err());
    }
}
