//! Compares a finished file of a pack with the result of packing its source again.
//!
//! **Invariant:** only results of source files that still exist are compared: outputs of files that
//! this pack replaced cannot come from other files.

use moeflux_io::ReadFile;

use crate::error::{Error, Result};
use crate::format::read_into;
use crate::pack::compute::compute;
use crate::pack::file::{FilePlan, Job};
use crate::pack::folder::Folder;
use crate::pack::pipeline::in_order;
use crate::pack::source::SourceFiles;
use crate::pack::write::Steps;

/// Compares the file under its final name.
///
/// # Errors
///
/// [`Error::Malformed`] if it was made from other source files; if a file cannot be read.
pub(super) fn compare(
    plan: &FilePlan,
    (files, folder): (&SourceFiles, &Folder),
    n_threads: usize,
    steps: &mut Steps<'_, '_>,
) -> Result<()> {
    let path = folder.path(&plan.name);
    let file = ReadFile::open(&path).map_err(Error::io("open", &path))?;
    let mut jobs = plan.jobs();
    jobs.retain(|job| job.piece.sources().all(|file_idx| files.is_there(file_idx)));
    let mut sink = |job: &Job, bytes: Vec<u8>| {
        steps.before()?;
        let mut rest = bytes.as_slice();
        for put in &job.puts {
            let (made, behind) = rest.split_at(put.len());
            rest = behind;
            let mut stored = vec![0; made.len()];
            read_into(&file, &path, plan.place(*put), &mut stored)?;
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
