# SPDX-License-Identifier: Apache-2.0
"""The cases of compare.py that are about collectives. A round measures all
contenders at one size, one after the other."""
import os
import shutil
import subprocess
import sys
import tempfile

from measure import Figure, row

OPS = "all_reduce,broadcast,reduce,all_gather,reduce_scatter,all_to_all,all_to_all_skewed,gather,scatter,sendrecv,barrier"
SIZES = "4,4096,65536,1048576,16777216,67108864"


def sizes(r, least=0):
    return [n for n in map(int, (r.o.bytes or SIZES).split(",")) if n >= least]


def ops(r, had):
    """The operations to measure, of those that a contender has."""
    wanted = (r.o.ops or OPS).split(",")
    return [op for op in wanted if op in had]


def label(op, size, ranks, memory=""):
    amount = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1024 else f"{size} B" if size else ""
    return " ".join(word for word in (op, amount, f"x{ranks}", memory) if word)


def our_figures(r, figures, ranks, size, some, *args):
    if not some:
        return
    for got in r.ours("collectives", "--ranks", ranks, "--ops", ",".join(some), "--bytes", size, *args):
        figures.setdefault((got["case"], got.get("memory", "")), Figure()).add(got["median_us"])


def gloo_figures(r, figures, ranks, size, some, *args):
    for python in r.o.python:
        env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        for got in r.run([python, r.tool("peer_collectives.py"), "--ranks", str(ranks), "--ops", ",".join(some), "--bytes", str(size), *args], env):
            if "unsupported" in got:
                continue
            f = figures.setdefault((got["case"], python, got.get("form")), Figure())
            f.add(got["median_us"])
            f.note = f"torch {got['version']} gloo"


def best_of(figures, op):
    """The best of a peer's ways of doing an operation."""
    ways = [f for key, f in figures.items() if key[0] == op]
    return min(ways, key=Figure.median) if ways else None


def against_gloo(r, ranks, want, *args, closing=None):
    """Compares every operation at every size; want(op, size) is the most that ours may take, as a share."""
    some = ops(r, r.our_ops())
    for i, size in enumerate(sizes(r)):
        here = [op for op in some if i == 0 or op != "barrier"]
        ours, peers = {}, {}
        for _ in range(r.o.rounds):
            our_figures(r, ours, ranks, size, here, *args)
            if closing:
                closing.round(r, ranks, size)
            gloo_figures(r, peers, ranks, size, here)
        for (op, memory), f in ours.items():
            peer = best_of(peers, op)
            at = 0 if op == "barrier" else size
            if peer:
                row(label(op, at, ranks, memory), f, peer, want(op, at), peer.note)
        if closing:
            closing.finish(ranks, size, ours)


def case_collectives(r):
    for ranks in r.ranks():
        def want(op, size):
            if op != "all_reduce":
                return 1
            if size <= 65536:
                return 1 / 10 if ranks == 2 else 1 / 3
            return 1 / 4 if size >= 64 << 20 else 1
        against_gloo(r, ranks, want)


class RawSocket:
    """One TCP connection that two ranks fill both ways: what all_reduce over TCP is held against, for it sends as much."""

    def __init__(self):
        self.raw = {}

    def round(self, r, ranks, size):
        if ranks == 2 and size >= 64 << 20:
            our_figures(r, self.raw, ranks, size, ["raw_socket"], "--transport", "tcp")

    def finish(self, ranks, size, ours):
        raw = self.raw.get(("raw_socket", ""))
        for (op, memory), f in ours.items():
            if raw and ranks == 2 and size >= 64 << 20 and op == "all_reduce":
                row(label(op, size, ranks, memory) + " tcp", f, raw, 1 / 0.8, "raw socket, two-way")


def case_collectives_tcp(r):
    for ranks in r.ranks():
        against_gloo(r, ranks, lambda op, size: 1, "--transport", "tcp", closing=RawSocket())


class MPI:
    """The driver, compiled, and the ways of running it."""

    def __init__(self, r, directory):
        for tool in ("mpicc", "mpirun"):
            if not shutil.which(tool):
                sys.exit(f"compare: there is no {tool}: apt-get install openmpi-bin libopenmpi-dev")
        self.r, self.driver = r, os.path.join(directory, "mpi_collectives")
        subprocess.run(["mpicc", "-O2", "-o", self.driver, r.tool("mpi_collectives.c")], check=True)

    def settings(self, ranks):
        """Bound to a CPU each or free, spinning or yielding; more ranks than CPUs must yield or take a time slice a message."""
        cpus = ",".join(map(str, sorted(self.r.cpus or os.sched_getaffinity(0))))
        return [(bound, spin) for bound in (cpus, "") for spin in ("0", "1")]

    def run(self, setting, ranks, size, some):
        bound, spin = setting
        args = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", spin,
                self.driver, ",".join(some), str(size), *([bound] if bound else [])]
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if os.geteuid() == 0 else {}
        return self.r.run(args, root)


def case_mpi(r):
    with tempfile.TemporaryDirectory() as directory:
        mpi = MPI(r, directory)
        some = ops(r, r.our_ops())
        for ranks in r.ranks():
            for i, size in enumerate(sizes(r)):
                here = [op for op in some if i == 0 or op != "barrier"]
                ours, peers, running = {}, {}, mpi.settings(ranks)
                for _ in range(r.o.rounds):
                    our_figures(r, ours, ranks, size, here)
                    for setting in running:
                        for got in mpi.run(setting, ranks, size, here):
                            f = peers.setdefault((got["case"], *setting), Figure())
                            f.add(got["median_us"])
                            f.note = f"{got['version']}, {'bound' if setting[0] else 'free'}{', yields' if setting[1] == '1' else ''}"
                    # A way that is best nowhere is out after the first round.
                    running = [s for s in running if any(best_of(peers, op) is peers.get((op, *s)) for op in here)]
                for (op, memory), f in ours.items():
                    peer = best_of(peers, op)
                    at = 0 if op == "barrier" else size
                    # Small ones may take 3 µs, whatever MPI takes; where ranks share a CPU, what MPI takes if that is more.
                    share = 3 / peer.median()
                    row(label(op, at, ranks, memory), f, peer, 1.1 if at >= 65536 else share if ranks <= r.num_cpus() else max(1.1, share), peer.note)


def case_waiting(r):
    two, four, late, peers = {}, {}, {}, {}
    for _ in range(r.o.rounds):
        for ranks, figures in ((2, two), (4, four)):
            our_figures(r, figures, ranks, 1 << 20, ["all_reduce"])
            for got in r.ours("collectives", "--ranks", ranks, "--ops", "late"):
                late.setdefault((got["case"], ranks), Figure()).add(got["wait_cpu_us"])
            for got in r.run([r.o.python[0], r.tool("peer_collectives.py"), "--ranks", str(ranks), "--ops", "", "--late"]):
                peers.setdefault((got["case"], ranks), Figure()).add(got["wait_cpu_us"])
    for key, f in four.items():
        row(label(key[0], 1 << 20, 4, key[1]), f, two[key], 3, "2 ranks")
    limit = Figure()
    limit.add(10_000)
    for key, f in late.items():
        row(f"{key[0]} x{key[1]}, processor time", f, limit, 1, "100 ms late: at most")
        row(f"{key[0]} x{key[1]}, processor time", f, peers[key], float("inf"), "gloo")


def case_form(r):
    """How long ranks need to find each other: 256 processes, 1,000 goroutines."""
    for kind, ranks, most in (("processes", 256, 5_000_000), ("goroutines", 1000, 1_000_000)):
        ours, limit = Figure(), Figure()
        limit.add(most)
        for _ in range(r.o.rounds):
            ours.add(r.ours("form", "--ranks", ranks, "--kind", kind)[0]["median_us"])
        row(f"form {kind} x{ranks}", ours, limit, 1, "at most")


CASES = {"collectives": case_collectives, "collectives_tcp": case_collectives_tcp, "mpi": case_mpi, "waiting": case_waiting, "form": case_form}
