# SPDX-License-Identifier: Apache-2.0
"""Records the collectives that DistributedDataParallel issues on two ranks.

    python3 ddp_pytorch.py

writes ddp_pytorch_VERSION.json beside itself: of each case and each rank, what
the test script did and the collectives in between. pytorch_record_test.go does
the same with parallel.DDP and compares.
"""

import contextlib
import datetime
import inspect
import json
import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

VERSION = ".".join(torch.__version__.split(".")[:2])
log = []


class Recorder(dist.ProcessGroup):
    """A gloo group that writes down what it is asked for."""

    def __init__(self, inner, rank, size):
        super().__init__(rank, size)
        self.inner = inner

    def getBackendName(self):
        return "recorder"

    def note(self, op, tensor):
        log.append(f"{op} {str(tensor.dtype).split('.')[-1]} {tensor.numel()}")

    def allreduce(self, tensors, opts=None):
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if opts is None:
            opts = dist.AllreduceOptions()
        op = "max" if opts.reduceOp == dist.ReduceOp.MAX else "sum"
        self.note(f"all_reduce {op}", tensors[0])
        return self.inner.allreduce(tensors, opts)

    def broadcast(self, tensors, opts):
        self.note(f"broadcast {opts.rootRank}", tensors[0])
        return self.inner.broadcast(tensors, opts)

    def allgather(self, outputs, inputs, opts=None):
        self.note("all_gather", inputs[0])
        return self.inner.allgather(outputs, inputs)

    def barrier(self, *_, **__):
        log.append("barrier")
        return self.inner.barrier()


def create(store, rank, size, timeout):
    inner = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    return Recorder(inner, rank, size)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 6)
        self.norm = nn.BatchNorm1d(6)
        self.fc2 = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc2(torch.relu(self.norm(self.fc1(x))))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 6)
        self.never = nn.Linear(6, 6)
        self.sometimes = nn.Linear(6, 6)
        self.fc2 = nn.Linear(6, 4)
        self.on = False

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        if self.on:
            x = self.sometimes(x)
        return self.fc2(x)


def narrow():
    """Cut into the same buckets whether a weight or its bias comes first."""
    return nn.Sequential(nn.Linear(8, 1), nn.Linear(1, 20))


def frozen():
    m = MLP()
    m.fc1.weight.requires_grad_(False)
    return m


STEPS = ["step", "step", "step"]
TINY = 100 / (1 << 20)  # bucket_cap_mb of 100 bytes
CASES = [
    ("mlp", MLP, {}, STEPS),
    ("keep buffers", MLP, {"broadcast_buffers": False}, STEPS),
    ("eval", MLP, {}, ["step", "eval", "eval", "step", "nosync", "after", "step"]),
    ("nosync first", MLP, {}, ["nosync", "after", "step", "step"]),
    ("frozen", frozen, {}, STEPS),
    ("unused", Branches, {"find_unused_parameters": True}, ["step", "on", "step", "step", "off", "step"]),
    ("unused nosync", Branches, {"find_unused_parameters": True}, ["on", "nosync", "off", "after", "step"]),
    ("static", Branches, {"static_graph": True}, ["step"] * 4),
    ("tiny", narrow, {"bucket_cap_mb": TINY}, STEPS),
    ("tiny unused", Branches, {"find_unused_parameters": True, "bucket_cap_mb": TINY}, STEPS),
    ("join", MLP, {}, [("join", [2, 4], {})]),
    ("join from the start", MLP, {}, [("join", [0, 3], {"divide_by_initial_world_size": False})]),
    ("join nosync", MLP, {}, [("join", [-1, -3], {})]),
    ("join unused", Branches, {"find_unused_parameters": True}, [("join", [1, 3], {})]),
    ("join keep buffers", MLP, {"broadcast_buffers": False}, [("join", [1, 2], {})]),
    ("join throw", MLP, {}, [("join", [1, 3], {"throw_on_early_termination": True})]),
]
if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters:
    CASES.append(("init buffers", MLP, {"forward_sync_buffers": False}, STEPS))
    CASES.append(("join init buffers", MLP, {"forward_sync_buffers": False}, [("join", [1, 2], {})]))


def run(rank, model, kwargs, script):
    log.clear()
    torch.manual_seed(rank)
    m = DistributedDataParallel(model(), **kwargs)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(sync=True, after=False):
        if not after:
            opt.zero_grad()
        with contextlib.nullcontext() if sync else m.no_sync():
            m(torch.randn(5, 8)).square().mean().backward()
        if sync:
            opt.step()

    for what in script:
        log.append("# " + (what if isinstance(what, str) else what[0]))
        if what in ("step", "after"):
            step(after=what == "after")
        elif what == "nosync":
            step(sync=False)
        elif what == "eval":
            m.eval()
            with torch.no_grad():
                m(torch.randn(5, 8))
            m.train()
        elif what in ("on", "off"):
            m.module.on = what == "on" and rank == 1
        else:
            counts = what[1][rank]
            try:
                with m.join(**what[2]):
                    for i in range(abs(counts)):
                        step(sync=counts > 0 or i == 2)
                    log.append("# end")
            except RuntimeError:
                log.append("# error")
    return list(log)


def main():
    if "RANK" not in os.environ:
        with tempfile.TemporaryDirectory() as d:
            ranks = [subprocess.Popen([sys.executable, __file__, d], env=dict(os.environ, RANK=str(r))) for r in (0, 1)]
            if any([p.wait() for p in ranks]):
                sys.exit("a rank has failed")
            got = [json.load(open(f"{d}/{r}")) for r in (0, 1)]
        out = {"torch": torch.__version__, "cases": {name: [g[name] for g in got] for name in got[0]}}
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"ddp_pytorch_{VERSION}.json"), "w") as f:
            json.dump(out, f, indent=1)
            f.write("\n")
        return
    rank = int(os.environ["RANK"])
    more = {} if VERSION.startswith("1.") else {"devices": ["cpu"]}
    dist.Backend.register_backend("recorder", create, **more)
    dist.init_process_group("recorder", init_method=f"file://{sys.argv[1]}/store", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=30))
    with open(f"{sys.argv[1]}/{rank}", "w") as f:
        json.dump({name: run(rank, *rest) for name, *rest in CASES}, f)


if __name__ == "__main__":
    main()
