# SPDX-License-Identifier: Apache-2.0
"""PyTorch's half of compare.py's case rpc: torch.distributed.rpc (TensorPipe) between
two processes, one thread each. Prints a JSON object a case: calls without content, the
sum of two small tensors, asynchronous calls, an echo, and rows of a dense table (1,000,000
of 64 numbers) pulled and pushed by 4,096.

    python3 tools/peer_rpc.py noop,add,async,echo,ps 1048576,16777216,67108864"""
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

ROWS, DIM, BATCH = 1_000_000, 64, 4096


def noop():
    return None


def add(a, b):
    return a + b


def echo(x):
    return x


class Table:
    def __init__(self):
        self.rows = torch.zeros(ROWS, DIM)


def pull(table, ids):
    return table.local_value().rows[ids]


def push(table, ids, gradients):
    table.local_value().rows.index_add_(0, ids, gradients, alpha=-0.1)


def times(call, count, warm=1):
    """Microseconds of each call, least first."""
    took = []
    for i in range(warm + count):
        start = time.perf_counter()
        call()
        if i >= warm:
            took.append((time.perf_counter() - start) * 1e6)
    return sorted(took)


def say(case, took, **more):
    print(json.dumps({"case": case, "median_us": statistics.median(took), "min_us": took[0], "version": torch.__version__, **more}), flush=True)


def measure(cases, sizes):
    def call(f, *args):
        return rpc.rpc_sync("worker1", f, args)

    two = torch.ones(2)
    times(lambda: call(add, two, two), 50)
    if "noop" in cases:
        say("noop", times(lambda: call(noop), 500, 50))
    if "add" in cases:
        say("add", times(lambda: call(add, two, two), 500, 50))
    if "async" in cases:
        num = 5000

        def many():
            torch.futures.wait_all([rpc.rpc_async("worker1", add, (two, two)) for _ in range(num)])
        took = times(many, 3, 0)
        say("async", took, calls_per_s=num * 1e6 / statistics.median(took))
    if "echo" in cases:
        for size in sizes:
            x = torch.ones(size // 4)
            took = times(lambda: call(echo, x), 7)
            say("echo", took, bytes=size, gb_per_s=2 * size / statistics.median(took) / 1e3)
    if "ps" in cases:
        table = rpc.remote("worker1", Table)
        ids, gradients = torch.randint(0, ROWS, (BATCH,)), torch.ones(BATCH, DIM)

        def step():
            call(pull, table, ids)
            call(push, table, ids, gradients)
        took = times(step, 200, 5)
        say("ps", took, rows_per_s=BATCH * 1e6 / statistics.median(took))


def work(rank, port, cases, sizes):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        measure(cases, sizes)
    rpc.shutdown()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    wanted = sys.argv[1].split(",") if len(sys.argv) > 1 else ["noop", "add", "async", "echo", "ps"]
    lengths = [int(n) for n in sys.argv[2].split(",")] if len(sys.argv) > 2 else [1 << 20, 16 << 20, 64 << 20]
    mp.spawn(work, args=(free, wanted, lengths), nprocs=2)
