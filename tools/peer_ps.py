# SPDX-License-Identifier: Apache-2.0
"""PyTorch's half of compare_ps.py: a parameter server made with torch.distributed.rpc
(TensorPipe). One process holds the table, the other pulls random rows and pushes gradients
for them, one thread each. Prints a JSON object a case.

    python3 tools/peer_ps.py pull,push,pull_push 1000000 64 4096 200"""
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp


class Server:
    def __init__(self, rows, dim):
        self.table = torch.rand(rows, dim)


def pull(server, keys):
    return server.local_value().table[keys]


def push(server, keys, gradients):
    server.local_value().table.index_add_(0, keys, gradients, alpha=-0.1)


def client(cases, rows, dim, batch, steps):
    server = rpc.remote("server", Server, args=(rows, dim))
    gradients = torch.full((batch, dim), 0.001)

    def send(case):
        keys = torch.randint(0, rows, (batch,))
        began = time.perf_counter()
        if case != "push":
            rpc.rpc_sync("server", pull, (server, keys))
        if case != "pull":
            rpc.rpc_sync("server", push, (server, keys, gradients))
        return (time.perf_counter() - began) * 1e6

    for case in cases:
        for _ in range(10):
            send(case)
        took = sorted(send(case) for _ in range(steps))
        print(json.dumps({"case": case, "min_us": took[0], "p50_us": statistics.median(took), "p99_us": took[len(took) * 99 // 100],
                          "rows_per_s": batch * steps * 1e6 / sum(took), "version": torch.__version__}), flush=True)


def work(rank, port, *args):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    rpc.init_rpc(("client", "server")[rank], rank=rank, world_size=2)
    if rank == 0:
        client(*args)
    rpc.shutdown()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        free = s.getsockname()[1]
    mp.spawn(work, args=(free, sys.argv[1].split(","), *map(int, sys.argv[2:6])), nprocs=2)
