//! The header of the messages that ranks exchange, and the encoding of errors sent instead of
//! values.
//!
//! **Invariant:** any bytes are either read as a message or refused.

use std::hash::Hasher as _;

use twox_hash::XxHash3_64;

use crate::error::{Error, Result};

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 48;

/// The content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadKind {
    /// Values.
    Values = 0,
    /// No payload: rank 0 ends the step here.
    Stop = 1,
    /// The error of an expert that could not be read: layer, expert, text.
    Expert = 2,
    /// The text of another error.
    Failure = 3,
    /// The place of values that are not finite.
    NonFinite = 4,
    /// The error of a row of a table that could not be read: row, length of the table's name, name,
    /// text.
    TableRow = 5,
}

/// The header of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageHeader {
    /// Sequence number of the exchange.
    pub sequence: u64,
    /// Hash of the sender's activations.
    pub hash: u64,
    /// Stage of the step that the sender is at.
    pub stage: u32,
    pub kind: PayloadKind,
    pub len_bytes: u64,
    /// Time that the sender waited for others in the previous exchange.
    pub waited_us: u32,
    /// Time since then that it waited for its drive.
    pub read_wait_us: u32,
}

impl MessageHeader {
    /// Writes the header and the payload, with a checksum of both.
    pub(super) fn write(&self, payload: &[u8], out: &mut Vec<u8>) {
        debug_assert_eq!(self.len_bytes, payload.len() as u64);
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.hash.to_le_bytes());
        out.extend_from_slice(&self.stage.to_le_bytes());
        out.extend_from_slice(&(self.kind as u32).to_le_bytes());
        out.extend_from_slice(&self.len_bytes.to_le_bytes());
        out.extend_from_slice(&self.waited_us.to_le_bytes());
        out.extend_from_slice(&self.read_wait_us.to_le_bytes());
        let sum = sum_of(out, payload);
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(payload);
    }

    /// Returns whether a message arrived undamaged.
    pub(super) fn is_whole(message: &[u8]) -> bool {
        message.split_at_checked(HEADER_BYTES).is_some_and(|(header, payload)| {
            let (header, sum) = header.split_at(HEADER_BYTES - 8);
            sum == sum_of(header, payload).to_le_bytes()
        })
    }

    /// Reads the header of a message and its payload; `None` if the message is invalid.
    pub(super) fn read(message: &[u8]) -> Option<(Self, &[u8])> {
        let (header, payload) = message.split_at_checked(HEADER_BYTES)?;
        let u64_at =
            |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let u32_at =
            |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let kind = match u32_at(20) {
            0 => PayloadKind::Values,
            1 => PayloadKind::Stop,
            2 => PayloadKind::Expert,
            3 => PayloadKind::Failure,
            4 => PayloadKind::NonFinite,
            5 => PayloadKind::TableRow,
            _ => return None,
        };
        let header = Self {
            sequence: u64_at(0),
            hash: u64_at(8),
            stage: u32_at(16),
            kind,
            len_bytes: u64_at(24),
            waited_us: u32_at(32),
            read_wait_us: u32_at(36),
        };
        (header.len_bytes == payload.len() as u64).then_some((header, payload))
    }
}

fn sum_of(header: &[u8], payload: &[u8]) -> u64 {
    let mut hash = XxHash3_64::new();
    hash.write(header);
    hash.write(payload);
    hash.finish()
}

/// Encodes an error for other ranks.
pub(super) fn write_error(error: &Error) -> (PayloadKind, Vec<u8>) {
    match error {
        Error::Expert { layer, expert, problem } => {
            let mut bytes = Vec::new();
            [layer, expert].iter().for_each(|it| bytes.extend((**it as u64).to_le_bytes()));
            bytes.extend(problem.as_bytes());
            (PayloadKind::Expert, bytes)
        }
        Error::TableRow { table, row, problem } => {
            let mut bytes = Vec::new();
            [*row, table.len() as u64].iter().for_each(|it| bytes.extend(it.to_le_bytes()));
            bytes.extend(table.as_bytes());
            bytes.extend(problem.as_bytes());
            (PayloadKind::TableRow, bytes)
        }
        Error::NonFinite { place } => (PayloadKind::NonFinite, place.clone().into_bytes()),
        other => (PayloadKind::Failure, other.to_string().into_bytes()),
    }
}

/// Decodes the error that a rank reports.
pub(super) fn read_error(
    kind: PayloadKind,
    payload: &[u8],
    (rank, host): (usize, &str),
) -> Result<Error> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let number = |at: usize| {
        let bytes = payload.get(at..at + 8).and_then(|it| it.try_into().ok());
        bytes.map(u64::from_le_bytes)
    };
    let index = |at: usize| number(at).and_then(|number| usize::try_from(number).ok());
    let unreadable = || {
        let problem = "sent an unreadable error".to_owned();
        Error::Rank { rank, host: host.to_owned(), problem }
    };
    match kind {
        PayloadKind::Values | PayloadKind::Stop => {
            unreachable!("values and the end of a step are no errors")
        }
        PayloadKind::Failure => {
            Ok(Error::Rank { rank, host: host.to_owned(), problem: text(payload) })
        }
        PayloadKind::NonFinite => Ok(Error::NonFinite { place: text(payload) }),
        PayloadKind::Expert => {
            let (Some(layer), Some(expert)) = (index(0), index(8)) else {
                return Err(unreadable());
            };
            let problem = format!("rank {rank} ({host}): {}", text(&payload[16..]));
            Ok(Error::Expert { layer, expert, problem })
        }
        PayloadKind::TableRow => {
            let (Some(row), Some(n_bytes)) = (number(0), index(8)) else {
                return Err(unreadable());
            };
            let texts = payload[16..].split_at_checked(n_bytes);
            let (table, problem) = texts.ok_or_else(unreadable)?;
            let problem = format!("rank {rank} ({host}): {}", text(problem));
            Ok(Error::TableRow { table: text(table), row, problem })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_a_row_arrives_as_one() {
        let table = "model.layers.1.ple".to_owned();
        let error = Error::TableRow { table: table.clone(), row: 1 << 40, problem: "x".to_owned() };
        let (kind, payload) = write_error(&error);
        let read = read_error(kind, &payload, (3, "node")).unwrap();
        let Error::TableRow { table: found, row, problem } = read else { panic!("{read}") };
        assert_eq!((found, row, problem), (table, 1 << 40, "rank 3 (node): x".to_owned()));
        for n_bytes in 0..payload.len() - 1 {
            let read = read_error(kind, &payload[..n_bytes], (3, "node"));
            assert!(read.is_err() || n_bytes >= 34, "{n_bytes} bytes");
        }
    }
}
