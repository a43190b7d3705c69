# SPDX-License-Identifier: Apache-2.0
"""What the comparisons have in common: running contenders, keeping their figures,
printing a line for each with what the project wants of it."""
import json
import os
import statistics
import subprocess
import sys
import time


class Runner:
    def __init__(self, options):
        self.o = options
        self.cpus = {int(c) for c in options.cpus.split(",")} if options.cpus else None

    def busy(self, seconds=0.3):
        """The share of time that the CPUs have been busy."""
        def read():
            idle = total = 0
            with open("/proc/stat") as f:
                for line in f:
                    name, *fields = line.split()
                    if name.startswith("cpu") and name != "cpu" and (not self.cpus or int(name[3:]) in self.cpus):
                        v = [int(x) for x in fields[:8]]
                        idle, total = idle + v[3] + v[4], total + sum(v)
            return idle, total
        i0, t0 = read()
        time.sleep(seconds)
        i1, t1 = read()
        return 1 - (i1 - i0) / max(1, t1 - t0)

    def run(self, args, env=()):
        """Runs a command on the chosen CPUs; returns the objects that it printed."""
        deadline = time.monotonic() + self.o.quiet
        while self.o.quiet and self.busy() > 0.1 and time.monotonic() < deadline:
            pass
        pin = (lambda: os.sched_setaffinity(0, self.cpus)) if self.cpus else None
        done = subprocess.run(args, env={**os.environ, **dict(env)}, preexec_fn=pin, stdout=subprocess.PIPE, text=True, timeout=600)
        if done.returncode != 0:
            sys.exit(f"compare: {' '.join(args)} ended with code {done.returncode}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def num_cpus(self):
        return len(self.cpus or os.sched_getaffinity(0))

    def ranks(self):
        return [int(n) for n in self.o.ranks.split(",")]

    def our_ops(self):
        """The collectives that this cohort can measure."""
        return {got["case"] for got in self.ours("collectives", "--ops", "all", "--bytes", 4, "--reps", 1, "--memory", "private")}

    def ours(self, *args):
        return self.run([self.o.cohort, "bench", *map(str, args), "--json"])

    def peer(self, python, *args, threads=1, blas=1):
        """The object that compare.py prints as one of its peers."""
        env = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(blas), "MKL_NUM_THREADS": str(blas)}
        return self.run([python, self.tool("compare.py"), "--peer", *map(str, args)], env)[-1]

    @staticmethod
    def tool(name):
        return os.path.join(os.path.dirname(os.path.abspath(__file__)), name)


class Figure:
    """What one contender scored, round by round."""
    def __init__(self):
        self.values, self.note = [], ""

    def add(self, value):
        self.values.append(value)

    def median(self):
        return statistics.median(self.values)


def show(us):
    return f"{us / 1e3:.2f} ms" if us >= 1000 else f"{us:.2f} µs"


def row(name, ours, peer, want, peer_name, unit=show, higher=False):
    """Prints a line; want is the most (or least, if higher) that ours may be, as a share of the peer's."""
    ratio = ours.median() / peer.median()
    best = max if higher else min
    ok = (" ok " if (ratio >= want if higher else ratio <= want) else "MISS") + f" want {'>=' if higher else '<='} {want:.2f}"
    print(f"{name:34} {unit(ours.median()):>12} (best {unit(best(ours.values)):>11})  {peer_name:24} "
          f"{unit(peer.median()):>12} (best {unit(best(peer.values)):>11})  ratio {ratio:6.3f} {ok}", flush=True)
