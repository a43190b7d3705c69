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

A round runs all contenders one after the other, so that other work on the machine meets them
alike. A figure is the median over the rounds: of a run's median, of its 99th percentile and of
its least time. A ratio is that of two medians; behind it stand that of the least times, which
other work disturbs less, and what the project wants of the ratio."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SERVED = {"auto": "pull,pull_push", "tcp": "pull"}
ALL_CASES = "pull,push,pull_push,skew,bags,batched"
BARS = (
    ("pull_push, times PyTorch's", ("auto", "pull_push"), ("PyTorch", "pull_push"), 8),
    ("pull, times Redis'", ("auto", "pull"), ("Redis", "redis"), 5),
    ("pull, share of the loop in C", ("auto", "pull"), ("C", "gather"), 0.6),
    ("pull over TCP, share of a socket", ("tcp", "pull"), ("C", "socket"), 0.8),
)


def lines(args, **env):
    done = subprocess.run([str(a) for a in args], env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600)
    if done.returncode != 0:
        raise SystemExit(f"compare_ps: {' '.join(map(str, args))}\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Redis:
    """A Redis or Valkey without persistence, at a unix socket."""
    def __init__(self, program, directory):
        self.path = os.path.join(directory, "redis")
        self.process = subprocess.Popen([program, "--port", "0", "--unixsocket", self.path, "--save", "", "--appendonly", "no", "--dir", directory],
                                        stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not os.path.exists(self.path):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"compare_ps: {program} does not start")
            time.sleep(0.02)

    def close(self):
        self.process.terminate()
        self.process.wait()


def measure(o, directory):
    figures = {}  # (contender, case): least, p50 and p99 of each round

    def keep(contender, found):
        for f in found:
            figures.setdefault((contender, f["case"]), []).append((f["min_us"], f["p50_us"], f["p99_us"]))

    size = ["--rows", o.rows, "--dim", o.dim, "--batch", o.batch, "--steps", o.steps]
    peers = os.path.join(directory, "ps_peers")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler:
        subprocess.run([compiler, "-O3", "-o", peers, os.path.join(HERE, "ps_peers.c")], check=True)
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    redis = Redis(program, directory) if compiler and program else None
    began = time.monotonic()
    try:
        for done in range(o.rounds):
            if done and time.monotonic() - began > o.seconds * done / (done + 1):
                print(f"compare_ps: {done} rounds of {o.rounds}, for {o.seconds} s are over")
                break
            for transport, cases in SERVED.items():
                keep(transport, lines([o.cohort, "bench", "ps", "--json", "--cases", o.cases or cases, "--transport", transport, *size]))
                if compiler and transport == "auto":
                    keep("C", lines([peers, "gather", o.rows, o.dim, o.batch, o.steps]))
                elif compiler:
                    keep("C", lines([peers, "socket", o.batch * o.dim * 4, o.steps]))
            if redis:
                keep("Redis", lines([peers, "redis", redis.path, o.rows, o.dim, o.batch, max(20, o.steps // 4)]))
            if o.python:
                keep("PyTorch", lines([o.python, os.path.join(HERE, "peer_ps.py"), "pull,push,pull_push" if o.cases else "pull_push", o.rows, o.dim, o.batch,
                                       max(20, o.steps // 2)], OMP_NUM_THREADS="1", MKL_NUM_THREADS="1"))
    finally:
        if redis:
            redis.close()
    return figures


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cohort", default="./cohort")
    p.add_argument("--python", default="", help="an interpreter with torch")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=3600, help="begin no round that would probably end later")
    p.add_argument("--all", dest="cases", action="store_const", const=ALL_CASES, default="", help="all cases, not only those that the ratios need")
    p.add_argument("--rows", type=int, default=1_000_000)
    p.add_argument("--dim", type=int, default=64)
    p.add_argument("--batch", type=int, default=4096)
    p.add_argument("--steps", type=int, default=200)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(o, directory)
    least, median, late = ({key: statistics.median(r[i] for r in rounds) for key, rounds in figures.items()} for i in range(3))
    print(f"{'contender':<10} {'case':<10} {'least':>12} {'p50':>12} {'p99':>12} {'rows/s':>14}")
    for contender, case in median:
        k = contender, case
        print(f"{contender:<10} {case:<10} {least[k]:>9.1f} µs {median[k]:>9.1f} µs {late[k]:>9.1f} µs"
              f" {'' if case == 'socket' else format(o.batch * 1e6 / median[k], '>14,.0f')}")
    for text, ours, peer, want in BARS:
        if peer in median:
            ratio = median[peer] / median[ours]
            print(f"{text:<34} {ratio:6.2f}   of the least times {least[peer] / least[ours]:6.2f}   wanted {want:<4} {'ok' if ratio >= want else 'MISSED'}")


if __name__ == "__main__":
    main()
