#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures cohort's store beside PyTorch's TCPStore, in turns, and prints a table.

    go build -o cohort ./cmd/cohort
    python3 tools/compare_store.py --cohort ./cohort --python VENV/bin/python

Both serve the store in a process of its own and speak TCP over loopback; values
have 64 bytes. Every case runs ROUNDS times: ours, then each way of running
PyTorch's, so that all meet the same noise. A figure is the median over the rounds
with the best behind it; PyTorch's is that of its best way: with libuv and without,
and with 64 clients as threads of one process, of 4, of 16, and as 64 processes.

Cases: get, add and set_wait of one client (PyTorch has no set that waits: its
compare_set is the peer); set, which waits for no answer, as PyTorch's does not;
get of 64 clients. Ours has 64 clients in two ways: with a connection each, and as
callers of one process that share its connection, which is how the store is meant to
be used and what PyTorch's client cannot do (its calls take turns).

What the project wants of each figure stands behind it."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

VALUE = "v" * 64


# ---------------------------------------------------------------- the peer

def peer(case, clients, processes, libuv, seconds):
    """Serves a TCPStore in one process, and calls it from others."""
    import multiprocessing
    import threading
    from torch.distributed import TCPStore

    ctx = multiprocessing.get_context("fork")
    port, stop, start, results = ctx.Queue(), ctx.Event(), ctx.Barrier(processes), ctx.Queue()

    def serve():
        s = TCPStore("127.0.0.1", 0, None, True, use_libuv=libuv)
        s.set("key", VALUE)
        port.put(s.port)
        stop.wait()

    def work(at):
        n = clients // processes
        stores = [TCPStore("127.0.0.1", at, None, False, use_libuv=libuv) for _ in range(n)]
        done, spans = [0] * n, [0.0] * n

        def run(i):
            s, count = stores[i], 0
            call = {
                "get": lambda: s.get("key"),
                "add": lambda: s.add("n", 1),
                "set": lambda: s.set("mine%d" % i, VALUE),
                "set_wait": lambda: s.compare_set("mine%d" % i, VALUE, VALUE),
            }[case]
            if case == "set_wait":
                s.set("mine%d" % i, VALUE)
            begin = time.perf_counter()
            end = begin + seconds
            while time.perf_counter() < end:
                for _ in range(20):
                    call()
                count += 20
            s.get("key")  # what was sent without an answer is done then
            done[i], spans[i] = count, time.perf_counter() - begin

        start.wait()
        threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        results.put(sum(d / s for d, s in zip(done, spans)))

    server = ctx.Process(target=serve)
    server.start()
    at = port.get()
    workers = [ctx.Process(target=work, args=(at,)) for _ in range(processes)]
    for w in workers:
        w.start()
    rate = sum(results.get() for _ in workers)
    for w in workers:
        w.join()
    stop.set()
    server.join()
    print(json.dumps({"ops_per_s": rate}))


# ---------------------------------------------------------------- the comparison

class Case:
    def __init__(self, name, op, clients, floor, ways):
        self.name, self.op, self.clients, self.floor, self.ways = name, op, clients, floor, ways


CASES = [
    Case("get, 1 client", "get", 1, 3, [1]),
    Case("add, 1 client", "add", 1, None, [1]),
    Case("set that waits, 1 client", "set_wait", 1, None, [1]),
    Case("set, 1 client", "set", 1, 1, [1]),
    Case("get, 64 clients", "get", 64, 10, [1, 4, 16, 64]),
]


def run(command, cpus):
    if cpus:
        command = ["taskset", "-c", cpus] + command
    out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if out.returncode != 0:
        sys.exit("%s\nfailed:\n%s" % (" ".join(command), out.stderr))
    return [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]


def ours(args, case, processes, kind):
    r = run([args.cohort, "bench", "store", "--json", "--ops", case.op, "--clients", str(case.clients), "--time", "%dms" % (1000 * args.seconds / 3),
             "--processes", str(processes), "--connections", kind], args.cpus)
    return r[0]["ops_per_s"]


def theirs(args, case, processes, libuv):
    return run([args.python, os.path.abspath(__file__), "--peer", case.op, "--clients", str(case.clients), "--processes", str(processes),
                "--libuv", str(libuv), "--seconds", str(args.seconds)], args.cpus)[0]["ops_per_s"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cohort", default="./cohort")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--cpus", default="", help="for taskset")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=1.5)
    p.add_argument("--cases", default="", help="only those whose names contain this")
    p.add_argument("--peer", help=argparse.SUPPRESS)
    p.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    p.add_argument("--processes", type=int, help=argparse.SUPPRESS)
    p.add_argument("--libuv", type=int, help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.peer:
        peer(args.peer, args.clients, args.processes, bool(args.libuv), args.seconds)
        return
    print("%-28s %-34s %12s %12s %8s %8s" % ("case", "how", "median/s", "best/s", "ratio", "want"))
    for case in CASES:
        if args.cases not in case.name:
            continue
        mine = {"own connections, 1 process": lambda: ours(args, case, 1, "own")}
        if case.clients > 1:
            mine["own connections, 4 processes"] = lambda: ours(args, case, 4, "own")
            mine["own connections, %d processes" % case.clients] = lambda: ours(args, case, case.clients, "own")
            mine["one connection, 1 process"] = lambda: ours(args, case, 1, "shared")
        peers = {"torch, %s, %d processes" % ("libuv" if uv else "no libuv", n): (lambda n=n, uv=uv: theirs(args, case, n, uv))
                 for uv in (1, 0) for n in case.ways}
        rates = {}
        for _ in range(args.rounds):
            for how, measure in (mine | peers).items():
                rates.setdefault(how, []).append(measure())
        best = max(statistics.median(rates[how]) for how in peers)
        for how in list(mine) + list(peers):
            median = statistics.median(rates[how])
            ratio = "%.1f" % (median / best) if how in mine else ""
            want = ">= %g" % case.floor if how in mine and case.floor else ""
            print("%-28s %-34s %12.0f %12.0f %8s %8s" % (case.name, how, median, max(rates[how]), ratio, want), flush=True)


if __name__ == "__main__":
    main()
