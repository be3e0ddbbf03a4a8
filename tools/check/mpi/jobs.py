"""How jobs of each MPI are started."""

import os
import pathlib

# What tells a process its rank.
RANK = {"openmpi": "OMPI_COMM_WORLD_RANK", "mpich": "PMI_RANK"}


def command(tools, mpi, n_ranks):
    """The beginning of a command line, and the environment."""
    root = pathlib.Path(tools) / mpi
    args = [str(root / "bin/mpiexec"), "-n", str(n_ranks)]
    if mpi == "openmpi":
        args += ["--oversubscribe", "--bind-to", "none"]
    env = dict(os.environ, PATH=f"{root / 'bin'}:{os.environ['PATH']}")
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return args, env
