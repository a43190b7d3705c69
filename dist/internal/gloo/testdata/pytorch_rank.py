# SPDX-License-Identifier: Apache-2.0
"""A PyTorch rank for the tests of package gloo: it does what everything() in
ranks_test.go does, with the same values, and checks what comes out.

python pytorch_rank.py HOST PORT RANK SIZE CASE ELEMS...
"""
import datetime
import sys

import torch
import torch.distributed as dist

host, port, me, n, case = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
sizes = [int(s) for s in sys.argv[6:]]
print(torch.__version__, flush=True)
store = dist.PrefixStore("default_pg", dist.TCPStore(host, port, n, False, timeout=datetime.timedelta(seconds=60)))
dist.init_process_group("gloo", store=store, rank=me, world_size=n, timeout=datetime.timedelta(seconds=60))


def value(rank, to, elems):
    return rank * 100 + to * 10 + (torch.arange(elems) % 1000).float()


def same(what, got, want):
    if not torch.equal(got, want):
        raise SystemExit(f"{what} of {got.numel()} elements: {got} want {want}")


def everything(elems):
    v = value(me, 0, elems)
    dist.all_reduce(v)
    total = sum(value(r, 0, elems) for r in range(n))
    same("all_reduce", v, total)
    v = value(me, 0, elems)
    dist.all_reduce(v, op=dist.ReduceOp.MAX)
    same("all_reduce max", v, value(n - 1, 0, elems))
    for root in range(n):
        v = value(me, 0, elems)
        dist.broadcast(v, root)
        same("broadcast", v, value(root, 0, elems))
        v = value(me, 0, elems)
        dist.reduce(v, root)
        if me == root:
            same("reduce", v, total)
        got = [torch.zeros(elems) for _ in range(n)] if me == root else None
        dist.gather(value(me, 0, elems), got, root)
        for r in range(n):
            if got:
                same("gather", got[r], value(r, 0, elems))
        v = torch.zeros(elems)
        dist.scatter(v, [value(me, r, elems) for r in range(n)] if me == root else None, root)
        same("scatter", v, value(root, me, elems))
    got = [torch.zeros(elems) for _ in range(n)]
    dist.all_gather(got, value(me, 0, elems))
    for r in range(n):
        same("all_gather", got[r], value(r, 0, elems))
    v = torch.zeros(n * elems)
    dist.all_to_all_single(v, torch.cat([value(me, r, elems) for r in range(n)]))
    same("all_to_all", v, torch.cat([value(r, me, elems) for r in range(n)]))
    if torch.__version__ < "2":  # it has no reduce_scatter
        v = torch.cat([value(me, r, elems) for r in range(n)])
        dist.all_reduce(v)
    else:
        v = torch.zeros(elems)
        dist.reduce_scatter_tensor(v, torch.cat([value(me, r, elems) for r in range(n)]))
        same("reduce_scatter", v, sum(value(r, me, elems) for r in range(n)))
    dist.barrier()
    dist.monitored_barrier()
    v = (torch.arange(elems) + me).float()
    w = dist.isend(v, (me + 1) % n)
    got = torch.zeros(elems)
    dist.recv(got, (me - 1) % n)
    same("recv", got, (torch.arange(elems) + (me - 1) % n).float())
    w.wait()
    if elems == 0:  # which PyTorch does not take from any
        return
    if me != 0:
        dist.send(v, 0)
        return
    for _ in range(n - 1):
        src = dist.recv(got)
        same("recv from any", got, (torch.arange(elems) + src).float())


if case == "everything":
    for elems in sizes:
        everything(elems)
    dist.barrier()
elif case == "die":
    dist.barrier()
    sys.stdin.read()
elif case == "broadcast":  # where the others are in something else
    dist.broadcast(torch.zeros(sizes[0]), 0)
elif case == "all_reduce":
    dist.all_reduce(torch.zeros(sizes[0]))
elif case == "recv":
    dist.recv(torch.zeros(sizes[0]), sizes[1])
elif case == "late":  # for a monitored barrier
    sys.stdin.read()
print("ok", flush=True)
