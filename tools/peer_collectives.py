#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's collectives (gloo) between local ranks, measured as `cohort bench
collectives` measures ours: a loop of calls, closed by a barrier, divided by its
length; the median of 3 loops. One JSON object a line.

    python3 tools/peer_collectives.py --ranks 2 --ops all_reduce,broadcast --bytes 4,65536

"bytes" is what it is there: the tensor of all_reduce, broadcast, reduce and
sendrecv (a round trip); each rank's contribution to all_gather and gather; the
whole source, a part for each rank, of reduce_scatter, all_to_all, all_to_all_skewed
and scatter, where a part has at least one element. Forms that PyTorch has of one operation
(list and single tensor) are each measured; "form" names them. What gloo refuses
is printed with "unsupported" and the reason. --late has rank 0 come 100 ms late
to a 1 MiB all_reduce and to a barrier, and tells the processor time that the
rank which waited longest took."""
import argparse
import json
import os
import resource
import socket
import statistics
import time

OPS = {  # operation: its forms
    "all_reduce": ["all_reduce"], "broadcast": ["broadcast"], "reduce": ["reduce"],
    "all_gather": ["all_gather", "all_gather_into_tensor"], "reduce_scatter": ["reduce_scatter", "reduce_scatter_tensor"],
    "all_to_all": ["all_to_all", "all_to_all_single"], "all_to_all_skewed": ["all_to_all_single_skewed"], "gather": ["gather"], "scatter": ["scatter"],
    "sendrecv": ["sendrecv"], "barrier": ["barrier"],
}
LATE_SECONDS = 0.1


def make_call(torch, dist, form, size, rank, ranks):
    """Returns a function that does one call, on tensors of its own."""
    n = max(1, size // 4)
    part = max(1, n // ranks)
    root = rank == 0
    if form == "barrier":
        return dist.barrier
    if form in ("all_reduce", "broadcast", "reduce"):
        x = torch.zeros(n)
        rest = () if form == "all_reduce" else (0,)
        return lambda: getattr(dist, form)(x, *rest)
    if form == "all_gather":
        x, out = torch.zeros(n), [torch.zeros(n) for _ in range(ranks)]
        return lambda: dist.all_gather(out, x)
    if form == "all_gather_into_tensor":
        x, whole = torch.zeros(n), torch.zeros(n * ranks)
        return lambda: dist.all_gather_into_tensor(whole, x)
    if form == "gather":
        x, out = torch.zeros(n), [torch.zeros(n) for _ in range(ranks)] if root else None
        return lambda: dist.gather(x, out, dst=0)
    if form == "sendrecv":
        x = torch.zeros(n)

        def round_trip():
            if rank == 0:
                dist.send(x, 1)
                dist.recv(x, 1)
            elif rank == 1:
                dist.recv(x, 0)
                dist.send(x, 0)
        return round_trip
    parts = [torch.zeros(part) for _ in range(ranks)]
    if form == "reduce_scatter":
        x = torch.zeros(part)
        return lambda: dist.reduce_scatter(x, parts)
    if form == "reduce_scatter_tensor":
        x, whole = torch.zeros(part), torch.zeros(part * ranks)
        return lambda: dist.reduce_scatter_tensor(x, whole)
    if form == "all_to_all":
        out = [torch.zeros(part) for _ in range(ranks)]
        return lambda: dist.all_to_all(out, parts)
    if form == "all_to_all_single":
        x, out = torch.zeros(part * ranks), torch.zeros(part * ranks)
        return lambda: dist.all_to_all_single(out, x)
    if form == "all_to_all_single_skewed":  # rank 0 gets three of four elements
        sends = [max(1, n // 4 // max(1, ranks - 1))] * ranks
        sends[0] = max(1, n - sum(sends[1:]))
        recvs = [sends[rank]] * ranks
        x, out = torch.zeros(sum(sends)), torch.zeros(sum(recvs))
        return lambda: dist.all_to_all_single(out, x, recvs, sends)
    if form == "scatter":
        x = torch.zeros(part)
        return lambda: dist.scatter(x, parts if root else None, src=0)
    raise ValueError(f"no operation {form}")


def loop_length(torch, dist, call):
    """Calls in a loop: enough that its barrier does not count, for about a third of a second. All ranks must do as many."""
    trials = 5
    dist.barrier()
    start = time.perf_counter()
    for _ in range(trials):
        call()
    dist.barrier()
    reps = torch.tensor([min(1000, max(4, int(0.3 * trials / (time.perf_counter() - start))))])
    dist.broadcast(reps, 0)
    return reps.item()


def loop_time(torch, dist, call):
    reps = loop_length(torch, dist, call)
    took = []
    for _ in range(3):
        dist.barrier()
        start = time.perf_counter()
        for _ in range(reps):
            call()
        dist.barrier()
        took.append((time.perf_counter() - start) / reps)
    return statistics.median(took)


def late(torch, dist, rank, ranks, say):
    """Rank 0 comes late; the others' processor time in the call is the cost of waiting."""
    for op, size in (("all_reduce", 1 << 20), ("barrier", 0)):
        call = make_call(torch, dist, op, size, rank, ranks)
        call()
        spent, took = [], []
        for _ in range(5):
            dist.barrier()
            time.sleep(LATE_SECONDS if rank == 0 else 0)
            start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
            call()
            after = resource.getrusage(resource.RUSAGE_SELF)
            took.append(time.perf_counter() - start)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        every = [torch.zeros(1, dtype=torch.float64) for _ in range(ranks)]
        dist.all_gather(every, torch.tensor([statistics.median(spent)], dtype=torch.float64))
        say(case="late_" + op, bytes=size, median_us=statistics.median(took) * 1e6, wait_cpu_us=max(t.item() for t in every[1:]) * 1e6)


def run_rank(rank, ranks, ops, sizes, with_late):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)

    def say(**fields):
        if rank == 0:
            print(json.dumps({"bench": "collectives", "ranks": ranks, "backend": "gloo", "transport": "tcp",
                              "version": torch.__version__.split("+")[0], **fields}), flush=True)

    for size in sizes:
        for op in ops:
            if op == "barrier":
                continue
            for form in OPS[op]:
                try:
                    call = make_call(torch, dist, form, size, rank, ranks)
                    call()
                except (RuntimeError, NotImplementedError, ValueError) as e:
                    say(case=op, form=form, bytes=size, unsupported=str(e).splitlines()[0][:200])
                    continue
                took = loop_time(torch, dist, call)
                say(case=op, form=form, bytes=size, median_us=took * 1e6, gb_per_s=size / took / 1e9)
    if "barrier" in ops:
        say(case="barrier", form="barrier", bytes=0, median_us=loop_time(torch, dist, dist.barrier) * 1e6)
    if with_late:
        late(torch, dist, rank, ranks, say)
    dist.destroy_process_group()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--ops", default=",".join(OPS))
    p.add_argument("--bytes", default="4,4096,65536,1048576,16777216,67108864")
    p.add_argument("--late", action="store_true")
    o = p.parse_args()
    ops = [op for op in o.ops.split(",") if op]
    for op in ops:
        if op not in OPS:
            p.error(f"no operation {op}: there are {', '.join(OPS)}")
    import torch.multiprocessing as mp
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    mp.spawn(run_rank, args=(o.ranks, ops, [int(n) for n in o.bytes.split(",")], o.late), nprocs=o.ranks)


if __name__ == "__main__":
    main()
