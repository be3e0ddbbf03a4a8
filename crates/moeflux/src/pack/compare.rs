//! A finished file of a pack, compared with what would be made of its source now.
//!
//! **Invariant:** only what files that are still there would give is compared: what was made of
//! files that the pack replaced cannot be of others.

use moeflux_io::ReadFile;

use crate::error::{Error, Result};
use crate::format::read_into;
use crate::pack::compute::compute;
use crate::pack::file::{FilePlan, Job};
use crate::pack::folder::Folder;
use crate::pack::pipeline::in_order;
use crate::pack::source::SourceFiles;
use crate::pack::write::Steps;

/// Compares a file under its name.
///
/// # Errors
///
/// [`Error::Malformed`] if it was made of other files; when a file cannot be read.
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
                let problem = "was made of other files than those that the source has now, and \
                               what else it was made of is gone: put back the files that the \
                               interrupted pack began with";
                return Err(Error::malformed(&path, problem));
            }
        }
        Ok(())
    };
    in_order(&jobs, n_threads, &|job| compute(job, files), &mut sink)
}
