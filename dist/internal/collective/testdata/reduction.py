# SPDX-License-Identifier: Apache-2.0
#
# Writes what PyTorch reduces: two ranks over gloo, and four contributions that
# are added in float32 and rounded once. Run it in this directory:
#
#   python reduction.py > reduction.json
#
# Needs torch (written by 2.15). NaN is left out: gloo's minimum and maximum
# forget it.

import json
import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

OPS = {"sum": dist.ReduceOp.SUM, "product": dist.ReduceOp.PRODUCT, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX,
       "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR, "bxor": dist.ReduceOp.BXOR}
FLOATS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
INTS = {"int64": torch.int64, "int32": torch.int32, "int8": torch.int8, "uint8": torch.uint8}
N = 96


def data(name, rank):
    """Common numbers, and any bits but NaN: denormal, large, infinite."""
    g = torch.Generator().manual_seed(31 * rank + len(name))
    if name in INTS:
        t = INTS[name]
        size = torch.empty(0, dtype=t).element_size()
        return torch.randint(0, 256, (N * size,), generator=g, dtype=torch.uint8).view(t)
    t = FLOATS[name]
    size = torch.empty(0, dtype=t).element_size()
    wild = torch.randint(0, 256, (N // 2 * size,), generator=g, dtype=torch.uint8).view(t).clone()
    wild[torch.isnan(wild)] = float("inf") if rank == 0 else 1.0
    return torch.cat([torch.randn(N // 2, generator=g, dtype=torch.float64).to(t), wild])


def hexed(x):
    return bytes(x.contiguous().view(torch.uint8).tolist()).hex()


def main(rank, port, results):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for name in list(FLOATS) + list(INTS):
        for op, number in OPS.items():
            if op.startswith("b") and name in FLOATS:
                continue
            x = data(name, rank).clone()
            try:
                dist.all_reduce(x, number)
            except (RuntimeError, TypeError, ValueError) as e:
                if rank == 0:
                    print(f"gloo: no {op} of {name}: {str(e).splitlines()[0]}", file=sys.stderr)
                continue
            if rank == 0:
                results.append({"dtype": name, "op": op, "in": [hexed(data(name, r)) for r in range(2)], "out": hexed(x)})
    dist.destroy_process_group()


def several():
    for name in ("bfloat16", "float16"):
        xs = [data(name, r) for r in range(4)]
        total = xs[0].float()
        for x in xs[1:]:
            total = total + x.float()
        for op, x in (("sum", total), ("avg", total / 4)):
            yield {"dtype": name, "op": op, "in": [hexed(x) for x in xs], "out": hexed(x.to(xs[0].dtype))}


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with mp.Manager() as m:
        results = m.list()
        mp.spawn(main, (port, results), 2)
        lines = [json.dumps(r) for r in list(results) + list(several())]
    print("[\n" + ",\n".join(lines) + "\n]")
