# SPDX-License-Identifier: Apache-2.0
"""The step of BenchmarkStep in PyTorch: python step.py [optimizer]. Prints µs a step."""

import os
import sys
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch.distributed.optim import DistributedOptimizer

N, WARM, STEPS = 64, 50, 400
weight = torch.full((N, N), 0.01, requires_grad=True)


def forward(x):
    return torch.tanh(torch.nn.functional.linear(x, weight))


def refs():
    return [rpc.RRef(weight)]


def main(rank, with_optimizer):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        x = torch.full((32, N), 0.5)
        opt = None
        if with_optimizer:
            theirs = rpc.rpc_sync("worker1", refs)
            opt = DistributedOptimizer(torch.optim.SGD, [rpc.RRef(weight)] + theirs, lr=1e-4)
        times = []
        for i in range(WARM + STEPS):
            begin = time.perf_counter()
            with dist_autograd.context() as context:
                h = torch.nn.functional.linear(x, weight)
                y = rpc.rpc_sync("worker1", forward, args=(h,))
                dist_autograd.backward(context, [(y * y).mean()])
                if opt:
                    opt.step(context)
            if i >= WARM:
                times.append(time.perf_counter() - begin)
        times.sort()
        print(f"torch {torch.__version__}: median {times[len(times) // 2] * 1e6:.0f} us a step, optimizer {with_optimizer}")
    rpc.shutdown()


if __name__ == "__main__":
    mp.spawn(main, args=("optimizer" in sys.argv,), nprocs=2)
