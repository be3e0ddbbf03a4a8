//! Detects the launcher of this process from the variables that launchers set.
//!
//! **Invariant:** pure: the environment is passed in as a function.

use std::fmt;

/// The kind of a launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// Hydra's `mpiexec`: MPICH, Intel MPI.
    Hydra,
    /// Slurm's `srun`.
    Slurm,
}

#[cfg(unix)]
impl Kind {
    /// Returns whether a library with this version text can belong to this launcher.
    pub(crate) fn may_launch(self, version: &str) -> bool {
        match self {
            Self::OpenMpi => version.contains("Open MPI"),
            Self::Hydra => !version.contains("Open MPI"),
            Self::Slurm => true,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenMpi => "Open MPI's launcher",
            Self::Hydra => "MPICH's launcher, or one of its relatives,",
            Self::Slurm => "Slurm",
        })
    }
}

/// A launcher, and the rank of this process in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Its kind.
    pub kind: Kind,
    /// Number of processes that it started.
    pub n_ranks: usize,
    /// Index of this process among them.
    pub rank: usize,
}

/// Returns the launcher that started this process as one of several, if there is one.
#[must_use]
pub fn launcher(variable: &dyn Fn(&str) -> Option<String>) -> Option<Launcher> {
    let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
    let kinds = [
        (Kind::OpenMpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        (Kind::Hydra, "PMI_SIZE", "PMI_RANK"),
        // A batch script has SLURM_NTASKS too, although it is one process.
        (Kind::Slurm, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ];
    let found = kinds.into_iter().find_map(|(kind, size, rank)| {
        Some(Launcher { kind, n_ranks: number(size)?, rank: number(rank)? })
    });
    found.filter(|it| it.n_ranks > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Option<Launcher> {
        launcher(&|name| {
            let found = variables.iter().find(|(it, _)| *it == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn launchers_are_recognised_by_their_variables() {
        let open_mpi = [("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "2")];
        let expected = Launcher { kind: Kind::OpenMpi, n_ranks: 4, rank: 2 };
        assert_eq!(found(&open_mpi), Some(expected));
        let hydra = [("PMI_SIZE", "2"), ("PMI_RANK", "0")];
        assert_eq!(found(&hydra), Some(Launcher { kind: Kind::Hydra, n_ranks: 2, rank: 0 }));
        let slurm = [("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_PROCID", "7")];
        assert_eq!(found(&slurm), Some(Launcher { kind: Kind::Slurm, n_ranks: 8, rank: 7 }));
    }

    #[test]
    fn a_single_process_is_not_a_job() {
        assert_eq!(found(&[]), None);
        assert_eq!(found(&[("PMI_SIZE", "1"), ("PMI_RANK", "0")]), None);
        assert_eq!(found(&[("PMI_SIZE", "x"), ("PMI_RANK", "0")]), None);
        // A batch script outside of `srun`.
        assert_eq!(found(&[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")]), None);
    }
}
