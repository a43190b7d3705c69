#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures Cohort's parameter server beside others, in turns, and prints a table.

    go build -o cohort ./cmd/cohort
    python3 tools/compare_ps.py --cohort ./cohort --python VENV/bin/python

All contenders have one client, one server, the same table and the same rows of a request.
The peers are a parameter server made with PyTorch's RPC (peer_ps.py), Redis or Valkey with
pipelined MGET over a unix socket (redis-server or valkey-server of the system), a loop in C
that gathers the same random rows and copies them once, and a bare TCP socket that sends as
many bytes (ps_peers.c, which gcc or cc builds). What cannot be had is left out.

A figure is the median over the rounds of a run's median. What the project wants of each
ratio stands behind it."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = "pull,push,pull_push,skew,bags,batched"


def lines(args, **env):
    done = subprocess.run([str(a) for a in args], env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Redis:
    """A Redis or Valkey without persistence, at a unix socket."""
    def __init__(self, program, directory):
        self.path = os.path.join(directory, "redis")
        self.process = subprocess.Popen([program, "--port", "0", "--unixsocket", self.path, "--save", "", "--appendonly", "no", "--dir", directory],
                                        stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while not os.path.exists(self.path):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"compare_ps: {program} does not start")
            time.sleep(0.02)

    def close(self):
        self.process.terminate()
        self.process.wait()


def measure(o, directory):
    figures = {}  # (contender, case): p50 of each round

    def keep(contender, found):
        for f in found:
            figures.setdefault((contender, f["case"]), []).append((f["p50_us"], f.get("p99_us", 0)))

    size = ["--rows", o.rows, "--dim", o.dim, "--batch", o.batch, "--steps", o.steps]
    peers = os.path.join(directory, "ps_peers")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler:
        subprocess.run([compiler, "-O3", "-o", peers, os.path.join(HERE, "ps_peers.c")], check=True)
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    redis = Redis(program, directory) if compiler and program else None
    try:
        for _ in range(o.rounds):
            for transport in ("auto", "tcp"):
                keep(transport, lines([o.cohort, "bench", "ps", "--json", "--cases", CASES, "--transport", transport, *size]))
            if compiler:
                keep("C", lines([peers, "gather", o.rows, o.dim, o.batch, o.steps]))
                keep("C", lines([peers, "socket", o.batch * o.dim * 4, o.steps]))
            if redis:
                keep("Redis", lines([peers, "redis", redis.path, o.rows, o.dim, o.batch, o.steps]))
            if o.python:
                keep("PyTorch", lines([o.python, os.path.join(HERE, "peer_ps.py"), "pull,push,pull_push", o.rows, o.dim, o.batch, o.steps],
                                      OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"))
    finally:
        if redis:
            redis.close()
    return figures


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cohort", default="./cohort")
    p.add_argument("--python", default="", help="an interpreter with torch")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--rows", type=int, default=1_000_000)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--batch", type=int, default=4096)
    p.add_argument("--steps", type=int, default=200)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(o, directory)
    median = {key: statistics.median(p50 for p50, _ in rounds) for key, rounds in figures.items()}
    print(f"{'contender':<10} {'case':<10} {'p50':>12} {'p99':>12} {'rows/s':>14}")
    for (contender, case), p50 in median.items():
        p99 = statistics.median(v for _, v in figures[contender, case])
        print(f"{contender:<10} {case:<10} {p50:>9.1f} µs {p99:>9.1f} µs {'' if case == 'socket' else format(o.batch * 1e6 / p50, '>14,.0f')}")
    for text, ours, peer, want in (
        ("pull_push, times PyTorch's", ("auto", "pull_push"), ("PyTorch", "pull_push"), 8),
        ("pull, times Redis'", ("auto", "pull"), ("Redis", "redis"), 5),
        ("pull, share of the loop in C", ("auto", "pull"), ("C", "gather"), 0.6),
        ("pull over TCP, share of a socket", ("tcp", "pull"), ("C", "socket"), 0.8),
    ):
        if peer in median:
            ratio = median[peer] / median[ours]
            print(f"{text:<34} {ratio:6.2f}   wanted {want:<4} {'ok' if ratio >= want else 'MISSED'}")


if __name__ == "__main__":
    main()
