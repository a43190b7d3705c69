#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures Cohort's and PyTorch's clients on Cohort's and PyTorch's stores, over PyTorch's
protocol, and prints a table.

    go build -o cohort ./cmd/cohort
    python3 tools/compare_pytorch_store.py --cohort ./cohort --python VENV/bin/python

Client and server are processes of their own and speak over loopback TCP; there is one
client, and values have 64 bytes. All pairs are measured in turns, ROUNDS times, so
that all meet the same noise. A figure is the median over the rounds, with the best
behind it; the ratio is to PyTorch's client on PyTorch's server with libuv, its default.

Cases: get, which is two requests in PyTorch's protocol; add; set_wait, which is
compare_set for PyTorch's client (its set waits for no answer) and set for Cohort's."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

VALUE = "v" * 64


def store_of(port, libuv=None, master=False):
    from torch.distributed import TCPStore

    options = {}
    if libuv is not None and "use_libuv" in (TCPStore.__init__.__doc__ or ""):
        options["use_libuv"] = bool(libuv)
    return TCPStore("127.0.0.1", port, None, master, **options)


def serve(libuv):
    s = store_of(0, libuv, True)
    print("a store of PyTorch's at 127.0.0.1:%d" % s.port, flush=True)
    sys.stdin.read()


def client(port, case, seconds):
    s = store_of(port, 1 if hasattr(__import__("torch").distributed.TCPStore, "libuvBackend") else None)
    s.set("key", VALUE)
    s.set("mine", VALUE)
    call = {
        "get": lambda: s.get("key"),
        "add": lambda: s.add("n", 1),
        "set_wait": lambda: s.compare_set("mine", VALUE, VALUE),
    }[case]
    for _ in range(200):
        call()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + seconds:
        for _ in range(20):
            call()
        count += 20
    print(json.dumps({"ops_per_s": count / (time.perf_counter() - begin)}))


def on_cpus(args, command):
    return ["taskset", "-c", args.cpus] + command if args.cpus else command


def start(args, command):
    p = subprocess.Popen(on_cpus(args, command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = re.search(r":(\d+)$", p.stdout.readline().strip())
    if not found:
        sys.exit("%s did not say where it serves" % " ".join(command))
    return p, int(found.group(1))


def measure(args, command):
    out = subprocess.run(on_cpus(args, command), capture_output=True, text=True, timeout=120)
    if out.returncode != 0:
        sys.exit("%s\nfailed:\n%s" % (" ".join(command), out.stderr))
    return [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")][0]["ops_per_s"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--cohort", default="./cohort")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--cpus", default="", help="for taskset")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=1.5)
    p.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    p.add_argument("--client", type=int, help=argparse.SUPPRESS)
    p.add_argument("--case", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.serve is not None:
        return serve(args.serve)
    if args.client is not None:
        return client(args.client, args.case, args.seconds)
    me = [args.python, os.path.abspath(__file__)]
    servers = {
        "cohort": [args.cohort, "store", "--listen", "127.0.0.1:0"],
        "torch, libuv": me + ["--serve", "1"],
        "torch, no libuv": me + ["--serve", "0"],
    }
    started = {name: start(args, command) for name, command in servers.items()}
    rates = {}
    try:
        for _ in range(args.rounds):
            for case in ("get", "add", "set_wait"):
                for name, (_, port) in started.items():
                    for who, command in {
                        "cohort": [args.cohort, "bench", "store", "--wire", "pytorch", "--addr", "127.0.0.1:%d" % port, "--json", "--ops", case,
                                   "--clients", "1", "--connections", "own", "--time", "%dms" % (1000 * args.seconds / 3)],
                        "torch": me + ["--client", str(port), "--case", case, "--seconds", str(args.seconds)],
                    }.items():
                        rates.setdefault((case, who, name), []).append(measure(args, command))
    finally:
        for process, _ in started.values():
            process.terminate()
    print("%-10s %-10s %-18s %12s %12s %8s" % ("case", "client", "server", "median/s", "best/s", "ratio"))
    for (case, who, name), r in rates.items():
        base = statistics.median(rates[case, "torch", "torch, libuv"])
        print("%-10s %-10s %-18s %12.0f %12.0f %8.2f" % (case, who, name, statistics.median(r), max(r), statistics.median(r) / base))


if __name__ == "__main__":
    main()
