//! Compares a finished file of a pack with the result of packing its source again.
//!
//! **Invariant:** only results of source files that still exist are compared: outputs of files that
//! this pack replaced cannot come from other files.

use moeflux_io::ReadFile;

use crate::error::{Error, Result};
use crate::format::read_into;
use crate::pack::folder::PackFolder;
use crate::pack::plan::file::{FilePlan, PackJob};
use crate::pack::source::SourceFiles;
use crate::pack::write::ProgressReporter;
use crate::pack::write::compute::compute;
use crate::pack::write::pipeline::in_order;

/// Compares the file under its final name.
///
/// # Errors
///
/// [`Error::Malformed`] if it was made from other source files; if a file cannot be read.
pub(in crate::pack) fn compare(
    plan: &FilePlan,
    (files, folder): (&SourceFiles, &PackFolder),
    n_threads: usize,
    reporter: &mut ProgressReporter<'_, '_>,
) -> Result<()> {
    let path = folder.path(&plan.name);
    let file = ReadFile::open(&path).map_err(Error::io("open", &path))?;
    let mut jobs = plan.jobs();
    jobs.retain(|job| job.piece.sources().all(|file_idx| files.is_there(file_idx)));
    let mut sink = |job: &PackJob, bytes: Vec<u8>| {
        reporter.before_change()?;
        let mut rest = bytes.as_slice();
        for output in &job.outputs {
            let (made, after) = rest.split_at(output.len());
            rest = after;
            let mut stored = vec![0; made.len()];
            read_into(&file, &path, plan.offset_of(*output), &mut stored)?;
            if stored != made {
                let problem = "was made from source files that have since changed, and others are \
                               gone: restore the files that the interrupted pack began with";
                return Err(Error::malformed(&path, problem));
            }
        }
        Ok(())
    };
    in_order(&jobs, n_threads, &|job| compute(job, files), &mut sink)
}
