# SPDX-License-Identifier: Apache-2.0
"""The case rpc of compare.py: package rpc beside torch.distributed.rpc (TensorPipe)
and grpc-go. A round measures ours over each transport, then each peer."""
import os
import shutil
import subprocess
import sys
import tempfile

from measure import Figure, row

# What a call without content may take, in µs.
AIMS = {"auto": 15, "tcp": 40, "tls": 60}
MIB = 1 << 20
ECHOES = (MIB, 16 * MIB, 64 * MIB)


def build_grpc(directory):
    """The gRPC peer, or None where its modules cannot be had."""
    if not shutil.which("go"):
        sys.exit("compare: there is no go command, which builds tools/grpcbench")
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "grpcbench")
    binary = os.path.join(directory, "grpcbench")
    done = subprocess.run(["go", "build", "-C", here, "-o", binary, "."], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"without gRPC: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return None
    return binary


def rate(unit):
    return lambda v: f"{v:,.0f}/s" if unit == "/s" else f"{v:.2f} {unit}"


def keep(figures, contender, got, note=""):
    """Takes in a line that a contender printed, as the figures that it has."""
    for field in ("median_us", "calls_per_s", "gb_per_s", "rows_per_s"):
        if field in got:
            f = figures.setdefault((got["case"], got.get("bytes", 0), field), {}).setdefault(contender, Figure())
            f.add(got[field])
            f.note = note


def best(figures, key, higher=False):
    ways = figures.get(key)
    return (max if higher else min)(ways.values(), key=Figure.median) if ways else None


def case_rpc(r):
    ours, torch, grpc = {}, {}, {}
    env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    sizes = ",".join(map(str, ECHOES))
    with tempfile.TemporaryDirectory() as directory:
        binary = build_grpc(directory)
        for _ in range(r.o.rounds):
            for transport in AIMS:
                for got in r.ours("rpc", "--transport", transport, "--bytes", sizes):
                    keep(ours, transport, got)
            for python in r.o.python:
                for got in r.run([python, r.tool("peer_rpc.py"), "noop,add,async,echo,ps", sizes], env):
                    keep(torch, python, got, f"torch {got['version']}")
            for network in ("tcp", "unix"):
                for tuned in ("true", "false"):
                    for got in r.run([binary, "-network", network, f"-tuned={tuned}", "-bytes", str(16 * MIB)]) if binary else ():
                        got["gb_per_s"] = 2 * got.get("bytes", 0) / got["median_us"] / 1e3
                        keep(grpc, (network, tuned), got, f"grpc {got['version']} {network}")
    for transport, aim in AIMS.items():
        figure = ours[("noop", 0, "median_us")][transport]
        wanted = Figure()
        wanted.add(aim)
        row(f"rpc noop {transport}", figure, wanted, 1, "what is aimed at")
        row(f"rpc noop {transport}", figure, best(torch, ("noop", 0, "median_us")), 1 / 4, best(torch, ("noop", 0, "median_us")).note)
        if grpc:
            peer = best(grpc, ("noop", 0, "median_us"))
            row(f"rpc noop {transport}", figure, peer, 1, peer.note)
    for transport in AIMS:
        # TensorPipe shares memory too: over a network it is enough not to be slower.
        bulk, rows = (2, 3) if transport == "auto" else (1, 1)
        for name, size, field, unit, want in [("add", 0, "median_us", None, 1 / 4), ("async", 0, "calls_per_s", "/s", 20)] + \
                [("echo", n, "gb_per_s", "GB/s", bulk if n > MIB else 1) for n in ECHOES] + [("ps", 0, "rows_per_s", "/s", rows)]:
            key, higher = (name, size, field), field != "median_us"
            peer = best(torch, key, higher)
            label = f"rpc {name} {size >> 20} MiB {transport}" if size else f"rpc {name} {transport}"
            row(label, ours[key][transport], peer, want, peer.note, **({"unit": rate(unit), "higher": True} if higher else {}))
            if name == "echo" and (peer := best(grpc, key, True)):
                row(label, ours[key][transport], peer, 1, peer.note, unit=rate(unit), higher=True)


CASES = {"rpc": case_rpc}
