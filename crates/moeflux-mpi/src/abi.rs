//! The three binary interfaces of MPI libraries, and their constants.
//!
//! **Invariant:** the values are those of the implementations' own headers.

use crate::launcher::Kind;

/// A binary interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Abi {
    /// The interface defined by MPI 5.0: MPICH 5, Open MPI from 6 on.
    Standard,
    /// Open MPI 4 and 5: handles are the addresses of symbols.
    OpenMpi,
    /// MPICH before 5, Intel MPI, Cray: handles are ints.
    Mpich,
}

/// Handles and the thread level of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AbiConstants {
    pub world: usize,
    pub byte: usize,
    pub errors_return: usize,
    /// `MPI_THREAD_SERIALIZED`.
    pub serialized: i32,
}

impl Abi {
    /// Returns the constants. In Open MPI, handles are addresses, which `address` looks up; `None`
    /// if one is missing.
    pub(crate) fn constants(self, address: &dyn Fn(&str) -> Option<usize>) -> Option<AbiConstants> {
        Some(match self {
            Self::Standard => {
                AbiConstants { world: 0x101, byte: 0x247, errors_return: 0x143, serialized: 2048 }
            }
            Self::OpenMpi => AbiConstants {
                world: address("ompi_mpi_comm_world")?,
                byte: address("ompi_mpi_byte")?,
                errors_return: address("ompi_mpi_errors_return")?,
                serialized: 2,
            },
            Self::Mpich => AbiConstants {
                world: 0x4400_0000,
                byte: 0x4c00_010d,
                errors_return: 0x5400_0001,
                serialized: 2,
            },
        })
    }
}

/// Returns names of libraries with their interfaces, in the order in which they are tried for a
/// launcher.
pub(crate) fn names(kind: Kind) -> Vec<(&'static str, Abi)> {
    let open_mpi = [("libmpi.so.40", Abi::OpenMpi), ("libmpi.40.dylib", Abi::OpenMpi)];
    let mpich = [
        ("libmpi_abi.so.1", Abi::Standard),
        ("libmpi_abi.so.0", Abi::Standard),
        ("libmpi_abi.1.dylib", Abi::Standard),
        ("libmpi.so.12", Abi::Mpich),
        ("libmpich.so.12", Abi::Mpich),
        ("libmpi.12.dylib", Abi::Mpich),
    ];
    let (first, second): (&[_], &[_]) = match kind {
        Kind::OpenMpi => (&open_mpi, &mpich),
        Kind::Hydra | Kind::Slurm => (&mpich, &open_mpi),
    };
    // Another launcher's library would see a world of one process, and would be refused.
    let second = if kind == Kind::Slurm { second } else { &[] };
    first.iter().chain(second).copied().collect()
}

/// Returns the interface of a library that the user named.
pub(crate) fn of_name(file_name: &str) -> Abi {
    match file_name {
        name if name.contains("mpi_abi") => Abi::Standard,
        name if name.contains(".40") => Abi::OpenMpi,
        name if name.contains("mpich") || name.contains(".12") => Abi::Mpich,
        // `libmpi.so` belongs to Open MPI's development files.
        _ => Abi::OpenMpi,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_known_by_the_names_of_libraries() {
        for kind in [Kind::OpenMpi, Kind::Hydra, Kind::Slurm] {
            for (name, abi) in names(kind) {
                assert_eq!(of_name(name), abi, "{name}");
            }
        }
        assert_eq!(names(Kind::OpenMpi)[0].1, Abi::OpenMpi);
        assert_eq!(names(Kind::Hydra)[0].1, Abi::Standard);
    }

    #[test]
    fn open_mpi_has_addresses() {
        let address = |name: &str| (name != "ompi_mpi_byte").then_some(7);
        assert_eq!(Abi::OpenMpi.constants(&address), None);
        assert_eq!(Abi::OpenMpi.constants(&|_| Some(7)).unwrap().world, 7);
        assert_eq!(Abi::Standard.constants(&|_| None).unwrap().byte, 0x247);
    }
}
