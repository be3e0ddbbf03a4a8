//! Reads rows of tables from drives, ahead of their use, and keeps those used last.
//!
//! [`RowReader::ask`] begins to read what a batch needs as soon as its tokens are known, and
//! [`RowReader::collect`] waits for it. **Invariant:** a row that is returned was read whole and
//! checked: with its block's checksum in a pack, and for values that are not finite everywhere. A
//! failed read is an error or is repeated, never another row. Nothing is allocated once lists have
//! grown. This module knows no tokens.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use moeflux_io::{
    Clock, DriveChoice, Filling, FinishedLoad, LoadId, LoadJob, LoadOutcome, LoadPriority, Loader,
    LoaderSettings, N_PARTS_MAX, SlotIdx, SlotLayout, SlotMemory, Wait, lay_out,
};

use crate::error::{Error, Remedy, Result};
use crate::experts::stream::Drives;
use crate::rows::cache::RowCache;
use crate::rows::request::RowRequest;
use crate::rows::runs::{RUN_BYTES_MAX, RowsRun, push_runs, run_bytes_max};
use crate::rows::stats::RowStats;
use crate::weights::{RowPlace, RowStorage, RowTable};

/// Bytes for the memory of reads. With all of it in use, several drives are busy.
const READ_MEMORY_BYTES: usize = 2 << 20;

/// Upper bound on rereads of a block whose checksum is wrong: see those of experts.
const N_REREADS_MAX: u32 = 3;

/// Rows of tables on drives.
#[derive(Debug)]
pub(crate) struct RowReader {
    tables: Vec<CachedTable>,
    /// Paths of the checkpoint's files, for messages.
    paths: Vec<PathBuf>,
    memory: SlotMemory,
    /// By slot.
    jobs: Vec<RowsJob>,
    free_slots: Vec<SlotIdx>,
    loader: Loader,
    has_mirror: bool,
    sum_checks: SumChecks,
    /// Set when a drive as a whole has failed.
    is_broken: bool,
    request: RowRequest,
    /// Rows of the request to be read, in the order of `runs`, and how many of them are in jobs.
    unread: Vec<u64>,
    n_begun_rows: usize,
    runs: Vec<RowsRun>,
    n_begun_runs: usize,
    /// Number of runs that may share a slot. Those after them are of rows that are read alone.
    n_joint_runs: usize,
    /// Rows that jobs are reading, with their tables.
    reading: HashSet<(usize, u64)>,
    /// The first row of the request that cannot be read, and why.
    failure: Option<(u64, String)>,
    finished: Vec<FinishedLoad>,
    clock: Arc<dyn Clock>,
    stats: RowStats,
}

/// Whether blocks of packed rows are compared with their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SumChecks {
    /// At every read.
    On,
    /// Never.
    Off,
}

/// A table, and those of its rows that are in memory.
#[derive(Debug)]
struct CachedTable {
    table: RowTable,
    /// Factor of all values.
    scale: f32,
    cache: RowCache,
}

/// The rows that are read into a slot.
#[derive(Debug, Default)]
struct RowsJob {
    table_idx: usize,
    rows: Vec<u64>,
    layout: Option<SlotLayout>,
    n_rereads: u32,
}

/// Why a row that was read cannot be used.
enum RowFault {
    /// Its block does not have its checksum; another read may give the right bytes.
    Sum(RowPlace),
    /// This value of it is not finite.
    Value(RowPlace, usize),
}

impl RowReader {
    /// Creates a reader of `tables`, each with the factor of its values, and with a cache of about
    /// `cache_bytes` for all of them together. `paths` are those of the files on the drives.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] if memory is short.
    pub(crate) fn open(
        tables: Vec<(RowTable, f32)>,
        (drives, paths): (Drives, Vec<PathBuf>),
        (cache_bytes, sum_checks): (u64, SumChecks),
    ) -> Result<Self> {
        let block_bytes = drives.block_bytes();
        let Drives { primary, mirror, clock, .. } = drives;
        let has_mirror = mirror.is_some();
        let settings = LoaderSettings::default();
        let mut loader = Loader::new(primary, mirror, settings, Arc::clone(&clock));
        let run_bytes = tables.iter().map(|(table, _)| run_bytes_max(table, block_bytes)).max();
        let slot_bytes = run_bytes.unwrap_or(1).max(N_PARTS_MAX / 2 * RUN_BYTES_MAX);
        let mut memory = SlotMemory::new(slot_bytes, READ_MEMORY_BYTES);
        let slab_idx = memory.grow().ok_or_else(|| {
            let what = "reading rows of tables";
            Error::no_room(what, memory.slab_bytes() as u64, Remedy::SmallerBudget)
        })?;
        loader.slab_added(memory.slab(slab_idx).expect("the slab was made just now"));
        let total_bytes: u64 = tables.iter().map(|(table, _)| table.total_bytes()).sum();
        let cached = tables.into_iter().map(|(table, scale)| {
            let cache_bytes = cache_share(&table, total_bytes, cache_bytes);
            let cache = RowCache::new((table.n_rows, table.row_bytes()), cache_bytes)?;
            Ok(CachedTable { table, scale, cache })
        });
        let tables: Vec<CachedTable> = cached.collect::<Result<_>>()?;
        let n_cached = tables.iter().map(|it| it.cache.n_entries()).sum();
        Ok(Self {
            tables,
            paths,
            jobs: (0..memory.n_slots()).map(|_| RowsJob::default()).collect(),
            free_slots: (0..memory.n_slots()).map(SlotIdx).collect(),
            memory,
            loader,
            has_mirror,
            sum_checks,
            is_broken: false,
            request: RowRequest::default(),
            unread: Vec::new(),
            n_begun_rows: 0,
            runs: Vec::new(),
            n_begun_runs: 0,
            n_joint_runs: 0,
            reading: HashSet::new(),
            failure: None,
            finished: Vec::new(),
            clock,
            stats: RowStats { table_bytes: total_bytes, n_cached, ..RowStats::default() },
        })
    }

    /// Returns the bytes in memory of a reader with this cache, apart from the rows of a batch.
    #[must_use]
    pub(crate) fn memory_bytes(tables: &[RowTable], cache_bytes: u64) -> u64 {
        let total_bytes: u64 = tables.iter().map(RowTable::total_bytes).sum();
        let of_table = |table: &RowTable| {
            let cache_bytes = cache_share(table, total_bytes, cache_bytes);
            RowCache::bytes_of((table.n_rows, table.row_bytes()), cache_bytes)
        };
        tables.iter().map(of_table).sum::<u64>() + READ_MEMORY_BYTES as u64
    }

    /// Returns the index of the table of this name.
    #[must_use]
    pub(crate) fn table_idx(&self, name: &str) -> Option<usize> {
        self.tables.iter().position(|it| it.table.name == name)
    }

    /// Returns the statistics so far.
    #[must_use]
    pub(crate) fn stats(&self) -> RowStats {
        let counts = self.loader.counts();
        RowStats {
            reads: counts.n_reads,
            read_bytes: counts.demand_bytes + counts.prefetch_bytes,
            retries: counts.n_retries,
            ..self.stats.clone()
        }
    }

    /// Begins to read `rows` of a table, as far as they are not in memory. Returns without waiting.
    ///
    /// # Errors
    ///
    /// [`Error::Drive`] once a drive has failed as a whole.
    pub(crate) fn ask(&mut self, table_idx: usize, rows: &[u64]) -> Result<()> {
        self.check_alive()?;
        self.begin_request(table_idx, rows);
        self.advance()
    }

    /// Handles what was read meanwhile and begins further reads. Returns without waiting.
    ///
    /// # Errors
    ///
    /// As [`RowReader::ask`].
    pub(crate) fn advance(&mut self) -> Result<()> {
        self.check_alive()?;
        self.begin_jobs();
        self.poll(Wait::Poll)?;
        self.begin_jobs();
        // A submitted job begins with the next call.
        self.poll(Wait::Poll)
    }

    /// Waits for `rows` and appends their values to `values`: `[n_rows, n_cols]`. Rows that were
    /// not asked for just before are read now.
    ///
    /// # Errors
    ///
    /// [`Error::TableRow`] for a row that cannot be read; [`Error::Drive`].
    pub(crate) fn collect(
        &mut self,
        table_idx: usize,
        rows: &[u64],
        values: &mut Vec<f32>,
    ) -> Result<()> {
        self.check_alive()?;
        if !self.request.is_for(table_idx, rows) {
            self.begin_request(table_idx, rows);
        }
        let began = self.clock.now();
        let mut polled = Ok(());
        while polled.is_ok() && self.request.n_missing() > 0 && self.failure.is_none() {
            self.begin_jobs();
            assert!(self.loader.n_jobs() > 0, "missing rows are being read");
            polled = self.poll(Wait::Any);
        }
        self.stats.read_wait += self.clock.now().saturating_sub(began);
        polled?;
        let CachedTable { table, scale, .. } = &self.tables[table_idx];
        if let Some((row, problem)) = self.failure.take() {
            self.request.clear();
            return Err(Error::TableRow { table: table.name.clone(), row, problem });
        }
        for row in self.request.rows() {
            table.values.push(row, *scale, values);
        }
        Ok(())
    }

    fn check_alive(&self) -> Result<()> {
        if self.is_broken {
            let problem = "reading from the drive has failed permanently: open the model again";
            return Err(Error::Drive(problem.to_owned()));
        }
        Ok(())
    }

    /// Replaces the request. Reads of the one before that have begun go on, and their rows are
    /// kept.
    fn begin_request(&mut self, table_idx: usize, rows: &[u64]) {
        let Self { tables, request, unread, runs, reading, stats, .. } = self;
        let CachedTable { table, cache, .. } = &mut tables[table_idx];
        self.failure = None;
        request.begin((table_idx, table.row_bytes()), rows);
        unread.clear();
        unread.extend(request.wanted());
        stats.asked += unread.len() as u64;
        unread.retain(|row| match cache.get(*row) {
            Some(bytes) => {
                request.accept(table_idx, *row, bytes);
                stats.hits += 1;
                false
            }
            None => !reading.contains(&(table_idx, *row)),
        });
        runs.clear();
        push_runs(table, unread, self.loader.block_bytes(), runs);
        (self.n_begun_rows, self.n_begun_runs, self.n_joint_runs) = (0, 0, runs.len());
    }

    /// Begins jobs for rows whose reads have not begun, as far as there are free slots.
    fn begin_jobs(&mut self) {
        while let Some(slot) = self.free_slots.pop() {
            let Some(runs) = self.next_runs() else {
                self.free_slots.push(slot);
                return;
            };
            let extents = runs.iter().map(|run| (run.file, run.offset_bytes, run.len_bytes));
            let layout = lay_out(extents, self.loader.block_bytes());
            let n_rows: usize = runs.iter().map(|run| run.n_rows).sum();
            self.n_begun_runs += runs.len();
            let rows = &self.unread[self.n_begun_rows..][..n_rows];
            self.n_begun_rows += n_rows;
            let job = &mut self.jobs[slot.0];
            (job.table_idx, job.layout, job.n_rereads) =
                (self.request.table_idx(), Some(layout), 0);
            job.rows.clear();
            job.rows.extend_from_slice(rows);
            self.reading.extend(rows.iter().map(|row| (job.table_idx, *row)));
            let filling = self.memory.begin_fill(slot);
            self.submit(filling);
        }
    }

    /// Returns the next runs for a slot: as many as fit, but a row that is read alone has a slot of
    /// its own.
    fn next_runs(&self) -> Option<&[RowsRun]> {
        let runs = &self.runs[self.n_begun_runs..];
        if self.n_begun_runs >= self.n_joint_runs {
            return runs.get(..1);
        }
        let block_bytes = self.loader.block_bytes();
        let n_joint = self.n_joint_runs - self.n_begun_runs;
        let mut room_bytes = self.memory.slot_bytes();
        let fitting = runs.iter().take(N_PARTS_MAX.min(n_joint)).take_while(|run| {
            let span_bytes = run.span_bytes(block_bytes);
            let fits = span_bytes <= room_bytes;
            room_bytes = room_bytes.saturating_sub(span_bytes);
            fits
        });
        let n_runs = fitting.count();
        assert!(n_runs > 0, "a slot has room for any run");
        Some(&runs[..n_runs])
    }

    fn submit(&mut self, filling: Filling) {
        let slot = filling.slot();
        let RowsJob { layout, n_rereads, .. } = &self.jobs[slot.0];
        let layout = layout.as_ref().expect("a job has a layout");
        let drives = match (n_rereads, self.has_mirror) {
            (0, _) | (_, false) => DriveChoice::Any,
            (_, true) if n_rereads % 2 == 1 => DriveChoice::Mirror,
            (_, true) => DriveChoice::Primary,
        };
        let id = LoadId(slot.0 as u64);
        let job = LoadJob::new(id, LoadPriority::Demand, filling, layout.parts());
        self.loader.submit(job.again(drives, *n_rereads));
    }

    /// Handles finished jobs, after waiting as `wait` says.
    fn poll(&mut self, wait: Wait) -> Result<()> {
        let mut finished = std::mem::take(&mut self.finished);
        let polled = self.loader.wait(wait, &mut finished);
        finished.drain(..).for_each(|finished| self.settle(finished));
        self.finished = finished;
        polled.map_err(|error| {
            self.is_broken = true;
            Error::Drive(error.to_string())
        })
    }

    /// Accepts the rows of a finished job, or repeats it, or notes why they cannot be read.
    fn settle(&mut self, finished: FinishedLoad) {
        let FinishedLoad { filling, outcome, .. } = finished;
        let slot = filling.slot();
        let job = &self.jobs[slot.0];
        let is_last = job.n_rereads == N_REREADS_MAX;
        let problem = match outcome {
            LoadOutcome::Ready => {
                let table = &self.tables[job.table_idx].table;
                match first_fault(table, (job, self.sum_checks), filling.bytes()) {
                    None => return self.accept(filling),
                    Some(RowFault::Sum(_)) if !is_last => return self.read_again(filling),
                    Some(fault) => self.describe(&fault),
                }
            }
            // One drive gave a wrong checksum and the other failed: the first may be right next
            // time.
            LoadOutcome::Failed(_) if self.has_mirror && job.n_rereads > 0 && !is_last => {
                return self.read_again(filling);
            }
            LoadOutcome::Failed(error) => error.to_string(),
            LoadOutcome::Cancelled => unreachable!("reads of rows are not cancelled"),
        };
        if job.rows.len() > 1 {
            self.read_alone(slot);
        } else if self.request.misses(job.table_idx, job.rows[0]) {
            self.failure.get_or_insert((job.rows[0], problem));
        }
        self.memory.abandon(filling);
        self.end(slot);
    }

    /// Reads each row of a failed job again that is still wanted, without the others: one of them
    /// may be the only one that cannot be read.
    fn read_alone(&mut self, slot: SlotIdx) {
        let Self { jobs, tables, request, unread, runs, loader, .. } = self;
        let RowsJob { table_idx, rows, .. } = &jobs[slot.0];
        let table = &tables[*table_idx].table;
        for row in rows.iter().filter(|row| request.misses(*table_idx, **row)) {
            unread.push(*row);
            push_runs(table, &[*row], loader.block_bytes(), runs);
        }
    }

    /// Accepts the rows of a job that was read and checked.
    fn accept(&mut self, filling: Filling) {
        let slot = filling.slot();
        let job = &self.jobs[slot.0];
        let CachedTable { table, cache, .. } = &mut self.tables[job.table_idx];
        for row in &job.rows {
            let bytes = row_in(table, job, *row, filling.bytes()).0;
            cache.insert(*row, bytes);
            self.request.accept(job.table_idx, *row, bytes);
        }
        self.memory.finish(filling);
        self.end(slot);
    }

    fn read_again(&mut self, filling: Filling) {
        self.jobs[filling.slot().0].n_rereads += 1;
        self.stats.rereads += 1;
        self.submit(filling);
    }

    fn end(&mut self, slot: SlotIdx) {
        let job = &self.jobs[slot.0];
        for row in &job.rows {
            self.reading.remove(&(job.table_idx, *row));
        }
        self.free_slots.push(slot);
    }

    fn describe(&self, fault: &RowFault) -> String {
        match fault {
            RowFault::Sum(place) => {
                let extent = place.extent;
                format!(
                    "{}: {} bytes at offset {} do not have their checksum in {} reads: the file \
                     is damaged, `moeflux verify` lists all damage",
                    self.paths[extent.file_idx].display(),
                    extent.len_bytes,
                    extent.offset_bytes,
                    N_REREADS_MAX + 1
                )
            }
            RowFault::Value(place, value_idx) => {
                let extent = place.extent;
                format!(
                    "{}: value {value_idx} of the row in {} bytes at offset {} is NaN or \
                     infinite: the file is damaged; download it again",
                    self.paths[extent.file_idx].display(),
                    extent.len_bytes,
                    extent.offset_bytes
                )
            }
        }
    }
}

/// Returns the part of `cache_bytes` for one of several tables.
fn cache_share(table: &RowTable, total_bytes: u64, cache_bytes: u64) -> u64 {
    let share = u128::from(cache_bytes) * u128::from(table.total_bytes());
    u64::try_from(share.div_ceil(u128::from(total_bytes.max(1)))).unwrap_or(u64::MAX)
}

/// Returns a row within the bytes of its job's slot, with all that was read for it.
fn row_in<'a>(
    table: &RowTable,
    job: &RowsJob,
    row: u64,
    bytes: &'a [u8],
) -> (&'a [u8], RowPlace, &'a [u8]) {
    let place = table.place(row);
    let RowPlace { extent, row_at, .. } = place;
    let parts = job.layout.as_ref().map_or(&[][..], SlotLayout::parts);
    let part = parts.iter().find(|part| {
        let range = part.file_range();
        part.file.0 as usize == extent.file_idx
            && range.start <= extent.offset_bytes
            && extent.offset_bytes + extent.len_bytes <= range.end
    });
    let part = part.expect("each row of a job is in one of its parts");
    let skipped = extent.offset_bytes - part.offset_bytes;
    let skipped = usize::try_from(skipped).expect("less than a part");
    let n_read = usize::try_from(extent.len_bytes).expect("less than a part");
    let read = &bytes[part.slot_offset_bytes + skipped..][..n_read];
    (&read[row_at..][..table.row_bytes()], place, read)
}

/// Returns why a row of a job cannot be used, if there is such a row.
fn first_fault(
    table: &RowTable,
    (job, sum_checks): (&RowsJob, SumChecks),
    bytes: &[u8],
) -> Option<RowFault> {
    let mut checked = None;
    for row in &job.rows {
        let (values, place, read) = row_in(table, job, *row, bytes);
        if let (Some(block), RowStorage::Blocks(blocks)) = (place.block, &table.storage) {
            // Rows of a block follow each other.
            let is_new = sum_checks == SumChecks::On && checked != Some(block);
            if is_new && !blocks.shape.is_intact(block, read) {
                return Some(RowFault::Sum(place));
            }
            checked = Some(block);
        }
        if let Some(value_idx) = table.values.finite().first_bad(0, values) {
            return Some(RowFault::Value(place, value_idx));
        }
    }
    None
}

#[cfg(test)]
mod tests;
