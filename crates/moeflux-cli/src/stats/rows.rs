//! The cost of rows of tables that are read from a drive.

use moeflux::stats::RowStats;
use serde_json::{Value, json};

use crate::output::size::binary;

/// Returns the statistics as JSON.
pub(crate) fn json(stats: &RowStats) -> Value {
    json!({
        "table_bytes": stats.table_bytes,
        "rows_in_memory_max": stats.n_cached,
        "rows_requested": stats.asked,
        "row_hits": stats.hits,
        "reads": stats.reads,
        "bytes_read": stats.read_bytes,
        "read_wait_s": stats.read_wait.as_secs_f64(),
        "reads_repeated": stats.rereads + stats.retries,
    })
}

/// Returns a line of text: where rows came from, and the time spent waiting for them.
pub(crate) fn line(stats: &RowStats) -> String {
    let repeated = match stats.rereads + stats.retries {
        0 => String::new(),
        1 => ", 1 read repeated".to_owned(),
        n_repeated => format!(", {n_repeated} reads repeated"),
    };
    format!(
        "rows      {} of {} requested were in memory; {} in {} reads of a table of {}, waited \
         {:.2} s{repeated}",
        stats.hits,
        stats.asked,
        binary(stats.read_bytes),
        stats.reads,
        binary(stats.table_bytes),
        stats.read_wait.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_says_where_rows_came_from() {
        let stats = RowStats {
            table_bytes: 95 << 30,
            n_cached: 100_000,
            asked: 1600,
            hits: 400,
            reads: 1200,
            read_bytes: 5 << 20,
            rereads: 1,
            retries: 2,
            read_wait: Duration::from_millis(250),
        };
        let expected = "rows      400 of 1600 requested were in memory; 5.00 MiB in 1200 reads of \
                        a table of 95.00 GiB, waited 0.25 s, 3 reads repeated";
        assert_eq!(line(&stats), expected);
        assert_eq!(json(&stats)["reads_repeated"], 3);
    }
}
