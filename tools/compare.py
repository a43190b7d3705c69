#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures cohort beside PyTorch and OpenBLAS, in turns, and prints a table.

    go build -o cohort ./cmd/cohort
    python3 tools/compare.py --cohort ./cohort --python VENV/bin/python --cpus 0,1

Every case runs ROUNDS times: ours, then each peer, so that both meet the same
noise. A figure is the median over the rounds of a run's own median, with the
best run behind it. PyTorch runs with each way of setting its threads and those
of its BLAS (threads/BLAS threads), the two best of the first round go on, and the
best counts. --python may be given several times, for several versions.

Cases: step (mlp and gpt, 2 threads), step1 (the same with 1), step_bf16 (gpt in
bfloat16 against float32, both ours), images (cnn and resnet50, 2 threads, PyTorch
with both memory layouts), ddp (1 and 2 ranks of one thread, beside the same step
without data parallelism), gemm (against OpenBLAS's cblas_sgemm, and cblas_sgemv
for vectors, and 2 threads against 1), gemm_bf16 (bfloat16 operands and results
against float32, both ours). step and images also compare how much memory a model
grows by: over start-up, and PyTorch over its import.

Of collectives: collectives (2 and 4 ranks, beside gloo), collectives_tcp (without
shared memory, beside gloo, and at 64 MiB beside a socket that two ranks fill both
ways), mpi (beside Open MPI, which needs mpicc and mpirun), waiting (4 ranks on 2
CPUs beside 2 ranks; the processor time of ranks that wait for a late one), form
(256 processes, 1,000 goroutines). What the project wants of each figure stands
behind it.

rpc is package rpc over shared memory, TCP and TLS beside torch.distributed.rpc and
grpc-go (which the go command builds from grpcbench).

On a machine that others use too, --quiet waits for pauses, and starting the whole
under "chrt -r 1" (root, Linux) keeps the others off the CPUs for both contenders;
without it the scheduler may leave both threads on one CPU beside a busy process.

What a peer runs is in this file too, below "peers"; it needs torch, and for gemm
an OpenBLAS library (--openblas)."""
import argparse
import ctypes
import ctypes.util
import json
import os
import statistics
import sys
import time

import compare_collectives
import compare_rpc
from measure import Figure, Runner, row

# ---------------------------------------------------------------- peers

def status_bytes(field):
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith(field + ":"):
                return int(line.split()[1]) << 10
    return 0


def mlp(nn):
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def gpt(torch, nn):
    F = torch.nn.functional

    class Layer(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            b, t, w = x.shape
            q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).split(w, 2))
            if hasattr(F, "scaled_dot_product_attention"):
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:  # PyTorch before 2.0
                hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
                y = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ v
            x = x + self.proj(y.transpose(1, 2).reshape(b, t, w))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):
        def __init__(self, vocab=256, context=128, width=256, heads=8, layers=4):
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
            self.layers = nn.Sequential(*[Layer(width, heads) for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab)

        def forward(self, ids):
            return self.head(self.norm(self.layers(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))))

    return Model()


# The image models of peer_vision.py: batch, size of an image, classes. PyTorch
# may lay them out as it likes: "cnn" is row by row, "cnn+last" has channels last.
IMAGES = {"cnn": (64, 32, 10), "resnet50": (4, 224, 1000)}


def peer_step(model, threads, steps):
    import torch
    from torch import nn
    imported = status_bytes("VmRSS")
    torch.set_num_threads(int(threads))
    torch.manual_seed(0)
    if model == "mlp":
        m, x, y = mlp(nn), torch.randn(256, 784), torch.randint(0, 10, (256,))
        opt = torch.optim.SGD(m.parameters(), lr=0.01)
    elif model.split("+")[0] in IMAGES:
        import peer_vision
        model, _, layout = model.partition("+")
        batch, size, classes = IMAGES[model]
        m, x, y = getattr(peer_vision, model)(), torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))
        if layout:
            m, x = m.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        opt = torch.optim.SGD(m.parameters(), lr=0.01)
    else:
        m, x, y = gpt(torch, nn), torch.randint(0, 256, (8, 128)), torch.randint(0, 256, (8, 128))
        opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
    times = []
    for i in range(5 + int(steps)):
        start = time.perf_counter()
        opt.zero_grad(set_to_none=True)
        out = m(x)
        loss = nn.functional.cross_entropy(out.view(-1, out.shape[-1]), y.view(-1))
        loss.backward()
        opt.step()
        loss.item()
        if i >= 5:
            times.append(time.perf_counter() - start)
    return {"median_us": statistics.median(times) * 1e6, "version": torch.__version__, "growth_bytes": status_bytes("VmHWM") - imported}


def start_rank(rank, ranks, fn, args, result):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    out = fn(torch, dist, *args)
    out["version"] = torch.__version__
    if rank == 0:
        result.put(out)
    dist.destroy_process_group()


def on_ranks(ranks, fn, *args):
    import socket
    import torch.multiprocessing as mp
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    result = mp.get_context("spawn").SimpleQueue()
    mp.spawn(start_rank, args=(ranks, fn, args, result), nprocs=ranks)
    return result.get()


def rank_ddp(torch, dist, steps):
    nn = torch.nn
    torch.manual_seed(0)
    m = nn.parallel.DistributedDataParallel(mlp(nn))
    opt = torch.optim.SGD(m.parameters(), lr=0.01)
    x, y = torch.randn(128, 784), torch.randint(0, 10, (128,))
    times = []
    for i in range(5 + steps):
        dist.barrier()
        start = time.perf_counter()
        opt.zero_grad()
        nn.functional.cross_entropy(m(x), y).backward()
        opt.step()
        if i >= 5:
            times.append(time.perf_counter() - start)
    return {"median_us": statistics.median(times) * 1e6}


def peer_ddp(ranks, steps):
    return on_ranks(int(ranks), rank_ddp, int(steps))


def peer_gemm(library, shapes):
    """cblas_sgemm, and cblas_sgemv where a side is 1 (the better one counts); shapes
    are MxNxK/LAYOUT or BATCHxMxNxK/LAYOUT, as cohort bench gemm prints them."""
    blas = ctypes.CDLL(library)

    def matrix(size):  # on a cache line, with room behind: some kernels read too far
        memory = (ctypes.c_char * (4 * size + 4096))()
        address = ctypes.addressof(memory) + 63 & ~63
        ctypes.memset(address, 0x3f, 4 * size)
        return memory, address

    def median(call):
        times = []
        begin = time.perf_counter()
        while len(times) < 7 or time.perf_counter() - begin < 0.2:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return statistics.median(times[2:])

    out = {}
    for shape in shapes.split(","):
        sizes, layout = shape.split("/")
        *batch, m, n, k = map(int, sizes.split("x"))
        batch = batch[0] if batch else 1
        memory, (a, b, c) = zip(*(matrix(batch * size) for size in (m * k, k * n, m * n)))
        ta, tb = layout == "tn", layout == "nt"
        one, zero, at = ctypes.c_float(1), ctypes.c_float(0), ctypes.c_void_p
        calls = [(101, 112 if ta else 111, 112 if tb else 111, m, n, k, one, at(a + 4 * i * m * k), m if ta else k,
                  at(b + 4 * i * k * n), k if tb else n, zero, at(c + 4 * i * m * n), n) for i in range(batch)]
        ways = [lambda: [blas.cblas_sgemm(*args) for args in calls]]
        if batch == 1 and n == 1:
            rows, cols = (k, m) if ta else (m, k)
            ways.append(lambda: blas.cblas_sgemv(101, 112 if ta else 111, rows, cols, one, at(a), cols, at(b), 1, zero, at(c), 1))
        elif batch == 1 and m == 1:
            rows, cols = (n, k) if tb else (k, n)
            ways.append(lambda: blas.cblas_sgemv(101, 111 if tb else 112, rows, cols, one, at(b), cols, at(a), 1, zero, at(c), 1))
        out[shape] = 2 * batch * m * n * k / min(map(median, ways)) / 1e9
    return {"gflop_per_s": out}


PEERS = {"step": peer_step, "ddp": peer_ddp, "gemm": peer_gemm}

# ---------------------------------------------------------------- comparison

# What the step of a model may take on two threads, as a share of PyTorch's time.
WANT_STEP = {"gpt": 1 / 1.4, "mlp": 1 / 1.2}


def case_step(r, threads, models=(("gpt", 15), ("mlp", 40))):
    counts = [1, 2] if threads == 2 else [1]
    for model, steps in models:
        layouts = ["", "+last"] if model in IMAGES else [""]
        settings = [(py, t, b, layout) for py in r.o.python for t in counts for b in counts for layout in layouts]
        ours, grown, peers = Figure(), Figure(), {s: Figure() for s in settings}
        growth = {s: Figure() for s in settings}
        running = list(peers)
        for _ in range(r.o.rounds):
            got = r.ours("step", "--model", model, "--threads", threads, "--steps", steps)[0]
            ours.add(got["median_us"])
            grown.add(got["growth_bytes"])
            for s in running:
                got = r.peer(s[0], "step", model + s[3], s[1], steps, threads=s[1], blas=s[2])
                peers[s].add(got["median_us"])
                growth[s].add(got["growth_bytes"])
                peers[s].note = f"torch {got['version'].split('+')[0]} {s[1]}/{s[2]}{s[3]}"
            running = sorted(running, key=lambda s: peers[s].median())[:2]  # the rest is out after the first round
        best = min(running, key=lambda p: peers[p].median())
        row(f"step {model} --threads {threads}", ours, peers[best], WANT_STEP.get(model, 1) if threads == 2 else 1, peers[best].note)
        if threads == 2:
            row(f"memory growth of step {model}", grown, growth[best], 1, peers[best].note, lambda v: f"{v / 2**20:.1f} MiB")


def case_step_bf16(r):
    for threads in (1, 2):
        half, single = Figure(), Figure()
        for _ in range(r.o.rounds):
            for f, dtype in ((half, "bfloat16"), (single, "float32")):
                f.add(r.ours("step", "--model", "gpt", "--threads", threads, "--steps", 15, "--dtype", dtype)[0]["median_us"])
        row(f"step gpt --dtype bfloat16 --threads {threads}", half, single, 1 / 1.5, "float32")


def case_ddp(r):
    plain, one, two = Figure(), Figure(), Figure()
    peers = {(py, n): Figure() for py in r.o.python for n in (1, 2)}
    for _ in range(r.o.rounds):
        plain.add(r.ours("step", "--model", "mlp", "--batch", 128, "--threads", 1, "--steps", 60)[0]["median_us"])
        one.add(r.ours("ddp", "--ranks", 1, "--steps", 60)[0]["median_us"])
        two.add(r.ours("ddp", "--ranks", 2, "--steps", 60)[0]["median_us"])
        for (py, n), f in peers.items():
            got = r.peer(py, "ddp", n, 60)
            f.add(got["median_us"])
            f.note = f"torch {got['version'].split('+')[0]} {n} rank{'s' if n > 1 else ''}"
    row("ddp --ranks 1", one, plain, 1.05, "step mlp, batch 128")
    row("ddp --ranks 2", two, one, 1.15, "ddp --ranks 1")
    for (_, n), f in peers.items():
        row(f"ddp --ranks {n}", (one, two)[n - 1], f, 1, f.note)


def gemm_rates(r, figures, *args):
    for got in r.ours("gemm", "--time", "200ms", *args):
        figures.setdefault(f"{got['case']}/{got['layout']}", Figure()).add(got["gflop_per_s"])


def case_gemm(r):
    if not r.o.openblas:
        sys.exit("compare: no OpenBLAS library found; name one with --openblas")
    rates = {1: {}, 2: {}}
    for threads, ours in rates.items():
        peer = {}
        for _ in range(r.o.rounds):
            gemm_rates(r, ours, "--threads", threads)
            got = r.peer(sys.executable, "gemm", r.o.openblas, ",".join(ours), threads=threads, blas=threads)
            for shape, rate in got["gflop_per_s"].items():
                peer.setdefault(shape, Figure()).add(rate)
        for shape, f in ours.items():
            row(f"gemm {shape} --threads {threads}", f, peer[shape], 0.95, "OpenBLAS", lambda v: f"{v:.1f} GF/s", higher=True)
    for shape, f in rates[2].items():
        row(f"gemm {shape} --threads 2", f, rates[1][shape], 1.85, "--threads 1", lambda v: f"{v:.1f} GF/s", higher=True)


def case_gemm_bf16(r):
    for threads in (1, 2):
        half, single = {}, {}
        for _ in range(r.o.rounds):
            gemm_rates(r, half, "--threads", threads, "--dtype", "bfloat16")
            gemm_rates(r, single, "--threads", threads)
        for shape, f in half.items():
            row(f"gemm {shape} --dtype bfloat16 --threads {threads}", f, single[shape], 1.8, "float32", lambda v: f"{v:.1f} GF/s", higher=True)


IMAGE_STEPS = (("cnn", 30), ("resnet50", 5))
CASES = {
    "step": lambda r: case_step(r, 2), "images": lambda r: case_step(r, 2, IMAGE_STEPS), "step1": lambda r: case_step(r, 1),
    "step_bf16": case_step_bf16, "ddp": case_ddp, **compare_collectives.CASES, **compare_rpc.CASES, "gemm": case_gemm, "gemm_bf16": case_gemm_bf16,
}


def main():
    if sys.argv[1:2] == ["--peer"]:
        print(json.dumps(PEERS[sys.argv[2]](*sys.argv[3:])))
        return
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    p.add_argument("--cohort", default="./cohort", help="the cohort binary")
    p.add_argument("--python", action="append", help="an interpreter that has torch (default: this one)")
    p.add_argument("--openblas", default=ctypes.util.find_library("openblas"), help="OpenBLAS's shared library")
    p.add_argument("--cpus", default="", help="run everything on these, as in 0,1")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--ranks", default="2,4", help="of the cases of collectives, as in 2,4")
    p.add_argument("--ops", default="", help="only these collectives, as in all_reduce,broadcast")
    p.add_argument("--bytes", default="", help="only these sizes, as in 4,65536")
    p.add_argument("--quiet", type=float, default=0, help="before each run, wait at most so many seconds for the CPUs to be idle")
    o = p.parse_args()
    o.python = o.python or [sys.executable]
    for c in o.cases:
        if c not in CASES:
            p.error(f"no case {c}: there are {', '.join(CASES)}")
    r = Runner(o)
    for c in o.cases or CASES:
        CASES[c](r)


if __name__ == "__main__":
    main()
