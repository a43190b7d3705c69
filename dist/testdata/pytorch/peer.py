# SPDX-License-Identifier: Apache-2.0
"""A PyTorch rank for the tests of package dist.

It reads one job a line from standard input and writes one answer a line: a job
is where the ranks meet, who this one is, and the steps that it plays. What a
rank has and what must come out are the formulas of dist/oracle_test.go, so
that both sides compare with the same values.
"""
import datetime
import hashlib
import json
import os
import sys
import time

import torch
import torch.distributed as dist

VERSION = tuple(int(n) for n in torch.__version__.split(".")[:2])
DTYPES = {n: getattr(torch, n) for n in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool")}
REDUCTIONS = {"sum": "SUM", "product": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}


def of(dtype, values):
    """values, which are int64, as a tensor of a type."""
    return values.to(torch.uint8).to(torch.bool) if dtype == torch.bool else values.to(dtype)


class Step:
    """One run of an operation by one group."""

    def __init__(self, group, rank, size, step):
        self.group, self.rank, self.size = group, rank, size
        self.op, self.count = step["op"], step.get("count", 0)
        self.dtype = DTYPES[step.get("dtype", "float32")]
        self.reduce, self.parts = step.get("reduce", "sum"), step.get("parts", "even")
        self.background = step.get("async", False)
        self.reduces = "reduce" in self.op
        self.digest = ""
        self.global_ranks = step.get("ranks") or list(range(size))

    def has(self, rank, first, n):
        """What a rank has from element first on, as int64."""
        i = torch.arange(first, first + n, dtype=torch.int64)
        v = (i * 7 + rank * 31 + torch.div(i, 1000, rounding_mode="floor")) % 100
        signed = self.dtype not in (torch.uint8, torch.bool)
        if self.reduces:
            if self.reduce == "sum":
                v = v % 7
                if signed:
                    v = v - 3
            elif self.reduce == "product":
                v = v % 4
                two = (v == 0) & (rank < 5)
                minus = (v == 1) & signed
                v = torch.ones_like(v)
                v[two] = 2
                v[minus] = -1
            elif self.reduce == "avg":
                v = (v % 2) * self.size
                if rank > 3:
                    v = torch.zeros_like(v)
                elif signed:
                    v = torch.where(i % 3 == 0, -v, v)
            else:
                v = v % 64
                if signed:
                    v = v - 32
        if self.dtype == torch.bool:
            v = v % 2
        return v

    def mine(self, first, n):
        return of(self.dtype, self.has(self.rank, first, n))

    def empty(self, n):
        return torch.full((n,), 1).to(self.dtype)

    def reduced(self, first, n):
        acc = self.has(0, first, n)
        for r in range(1, self.size):
            v = self.has(r, first, n)
            if self.reduce in ("sum", "avg"):
                acc = acc + v
            elif self.reduce == "product":
                acc = acc * v
            elif self.reduce == "min":
                acc = torch.minimum(acc, v)
            elif self.reduce == "max":
                acc = torch.maximum(acc, v)
            elif self.reduce == "band":
                acc = acc & v
            elif self.reduce == "bor":
                acc = acc | v
            elif self.reduce == "bxor":
                acc = acc ^ v
        if self.reduce == "avg":
            acc = torch.div(acc, self.size, rounding_mode="trunc")
        if self.dtype == torch.bool:
            return acc != 0
        return of(self.dtype, acc)

    def part(self, rank):
        if self.parts == "uneven":
            return self.count // 2 + (rank * 5 + 1) % 7 * (self.count // 7 + 1)
        if self.parts == "some empty":
            return rank % 2 * self.count
        return self.count

    def parcel(self, source, to):
        return self.count if self.parts == "even" else self.part(source + 2 * to) // 2

    def before(self, source, to):
        return sum(self.parcel(source, r) for r in range(to))

    def compare(self, what, got, want):
        if want.dtype != got.dtype:
            raise AssertionError("%s is of %s, want %s" % (what, got.dtype, want.dtype))
        if got.dtype == torch.bool:  # a sum of bools may leave other bytes than 0 and 1
            got = got.view(torch.uint8) != 0
        if not torch.equal(got, want):
            at = int((got != want).nonzero()[0])
            raise AssertionError("%s: element %d is %s, want %s" % (what, at, got[at], want[at]))

    def done(self, *tensors):
        h = hashlib.sha256()
        for t in tensors:
            h.update(t.contiguous().view(torch.uint8).numpy().tobytes() if t.numel() else b"")
        self.digest = h.hexdigest()[:16]

    def call(self, f, *args, **kw):
        if self.background:
            kw["async_op"] = True
        return f(*args, group=self.group, **kw)

    def root(self):
        return (self.count + 1) % self.size

    def begin(self):
        """Begins the operation; finish ends it and compares what came out."""
        self.rest = getattr(self, "play_" + self.op)()
        self.work = next(self.rest)
        return self

    def finish(self):
        if self.work is not None:
            self.work.wait()
        for _ in self.rest:
            pass
        return self.digest

    def red(self):
        return getattr(dist.ReduceOp, REDUCTIONS[self.reduce])

    def play_barrier(self):
        yield self.call(dist.barrier)

    def play_monitored_barrier(self):
        yield dist.monitored_barrier(group=self.group)

    def play_all_reduce(self):
        x = self.mine(0, self.count)
        yield self.call(dist.all_reduce, x, op=self.red())
        self.compare("the result", x, self.reduced(0, self.count))
        self.done(x)

    def play_all_reduce_coalesced(self):
        sizes = [self.count, 5, self.count // 2 + 1]
        xs = [self.mine(sum(sizes[:j]), n) for j, n in enumerate(sizes)]
        yield self.call(dist.all_reduce_coalesced, xs, op=self.red())
        for j, x in enumerate(xs):
            self.compare("result %d" % j, x, self.reduced(sum(sizes[:j]), sizes[j]))
        self.done(*xs)

    def play_reduce(self):
        x = self.mine(0, self.count)
        yield self.call(dist.reduce, x, self.global_ranks[self.root()], op=self.red())
        if self.rank == self.root():
            self.compare("the result", x, self.reduced(0, self.count))

    def play_reduce_scatter(self):
        x, y = self.mine(0, self.count * self.size), self.empty(self.count)
        yield self.call(dist.reduce_scatter_tensor, y, x, op=self.red())
        self.compare("the result", y, self.reduced(self.rank * self.count, self.count))

    def play_reduce_scatter_list(self):
        sizes = [self.part(r) for r in range(self.size)]
        xs, y = [self.mine(sum(sizes[:r]), n) for r, n in enumerate(sizes)], self.empty(sizes[self.rank])
        yield self.call(dist.reduce_scatter, y, xs, op=self.red())
        self.compare("the result", y, self.reduced(sum(sizes[: self.rank]), sizes[self.rank]))

    def play_broadcast(self):
        x = self.mine(0, self.count)
        yield self.call(dist.broadcast, x, self.global_ranks[self.root()])
        self.compare("the result", x, of(self.dtype, self.has(self.root(), 0, self.count)))
        self.done(x)

    def play_broadcast_coalesced(self):
        sizes = [self.count, 0, 7, self.count // 2]
        x = self.mine(0, sum(sizes))  # which torch flattens too where it broadcasts several
        yield self.call(dist.broadcast, x, self.global_ranks[self.root()])
        self.compare("the result", x, of(self.dtype, self.has(self.root(), 0, sum(sizes))))

    def play_all_gather(self):
        x, y = self.mine(0, self.count), self.empty(self.count * self.size)
        if VERSION >= (2, 2):
            yield self.call(dist.all_gather_into_tensor, y, x)
        else:
            yield self.call(dist.all_gather, list(y.split(self.count)) if self.count else [self.empty(0) for _ in range(self.size)], x)
        self.compare("the result", y, torch.cat([of(self.dtype, self.has(r, 0, self.count)) for r in range(self.size)]))
        self.done(y)

    def play_all_gather_list(self):
        x, ys = self.mine(0, self.part(self.rank)), [self.empty(self.part(r)) for r in range(self.size)]
        yield self.call(dist.all_gather, ys, x)
        for r, y in enumerate(ys):
            self.compare("what comes from rank %d" % r, y, of(self.dtype, self.has(r, 0, self.part(r))))
        self.done(*ys)

    def play_all_gather_coalesced(self):
        sizes = [self.count, self.count // 3 + 1, 2]
        xs = [self.mine(sum(sizes[:j]), n) for j, n in enumerate(sizes)]
        ys = [[self.empty(n) for n in sizes] for _ in range(self.size)]
        yield self.call(dist.all_gather_coalesced, ys, xs)
        for r in range(self.size):
            for j, y in enumerate(ys[r]):
                self.compare("what comes from rank %d" % r, y, of(self.dtype, self.has(r, sum(sizes[:j]), sizes[j])))

    def play_gather(self):
        x, root, ys = self.mine(0, self.part(self.rank)), self.root(), None
        if self.rank == root:
            ys = [self.empty(self.part(r)) for r in range(self.size)]
        yield self.call(dist.gather, x, ys, dst=self.global_ranks[root])
        for r, y in enumerate(ys or []):
            self.compare("what comes from rank %d" % r, y, of(self.dtype, self.has(r, 0, self.part(r))))

    def play_scatter(self):
        sizes, root, xs = [self.part(r) for r in range(self.size)], self.root(), None
        if self.rank == root:
            xs = [self.mine(sum(sizes[:r]), n) for r, n in enumerate(sizes)]
        y = self.empty(sizes[self.rank])
        yield self.call(dist.scatter, y, xs, src=self.global_ranks[root])
        self.compare("the result", y, of(self.dtype, self.has(root, sum(sizes[: self.rank]), sizes[self.rank])))

    def play_all_to_all(self):
        sends = [self.parcel(self.rank, r) for r in range(self.size)]
        recvs = [self.parcel(r, self.rank) for r in range(self.size)]
        xs = [self.mine(sum(sends[:r]), n) for r, n in enumerate(sends)]
        ys = [self.empty(n) for n in recvs]
        if VERSION < (2, 12) or self.parts != "even":  # has no lists here
            y = self.empty(sum(recvs))
            yield self.call(dist.all_to_all_single, y, torch.cat(xs), recvs, sends)
            ys = list(y.split(recvs))
        else:
            yield self.call(dist.all_to_all, ys, xs)
        for r, y in enumerate(ys):
            self.compare("what comes from rank %d" % r, y, of(self.dtype, self.has(r, self.before(r, self.rank), recvs[r])))

    def play_all_to_all_single(self):
        sends = [self.parcel(self.rank, r) for r in range(self.size)]
        recvs = [self.parcel(r, self.rank) for r in range(self.size)]
        x, y = self.mine(0, 2 * sum(sends)).view(-1, 2), self.empty(2 * sum(recvs)).view(-1, 2)
        cut = (None, None) if self.parts == "even" else (recvs, sends)
        yield self.call(dist.all_to_all_single, y, x, cut[0], cut[1])
        at = 0
        for r, n in enumerate(recvs):
            self.compare("what comes from rank %d" % r, y[at : at + n].reshape(-1), of(self.dtype, self.has(r, 2 * self.before(r, self.rank), 2 * n)))
            at += n

    def play_send(self):
        yield
        following, previous = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        x, y = self.mine(0, self.count), self.empty(self.count)
        w = dist.isend(x, self.global_ranks[following], group=self.group)
        dist.recv(y, self.global_ranks[previous], group=self.group)
        w.wait()
        self.compare("what comes", y, of(self.dtype, self.has(previous, 0, self.count)))

    def play_recv_any(self):
        yield
        if self.rank != 0:
            dist.send(self.mine(0, self.count), self.global_ranks[0], group=self.group)
        else:
            came = set()
            for _ in range(self.size - 1):
                y = self.empty(self.count)
                source = self.global_ranks.index(dist.recv(y, group=self.group))
                if source in came:
                    raise AssertionError("a second message from rank %d" % source)
                came.add(source)
                self.compare("what comes", y, of(self.dtype, self.has(source, 0, self.count)))
        dist.barrier(group=self.group)

    def play_batch(self):
        yield
        ops, got = [], {}
        for r in range(self.size):
            if r != self.rank:
                got[r] = self.empty(self.count)
                ops.append(dist.P2POp(dist.isend, self.mine(r, self.count), self.global_ranks[r], group=self.group))
                ops.append(dist.P2POp(dist.irecv, got[r], self.global_ranks[r], group=self.group))
        for w in dist.batch_isend_irecv(ops) if ops else []:
            w.wait()
        for r, y in got.items():
            self.compare("what comes from rank %d" % r, y, of(self.dtype, self.has(r, self.rank, self.count)))

    def play_all_gather_object(self):
        yield dist.all_gather_object([None] * self.size, "text", group=self.group)

    def play_mixed_sum(self):
        """A sum of floats that are rounded: all ranks must get the same bits."""
        i = torch.arange(self.count, dtype=torch.float64)
        x = (torch.sin(i * (self.rank + 1)) * 100).to(self.dtype)
        yield self.call(dist.all_reduce, x)
        self.done(x)


def play(job):
    """Plays a job's steps and returns what came out of each."""
    kw = {"timeout": datetime.timedelta(seconds=job.get("timeout", 60))}
    if "init_method" in job:
        kw["init_method"] = job["init_method"]
    dist.init_process_group("gloo", rank=job["rank"], world_size=job["size"], **kw)
    groups = [(None, list(range(job["size"])))]
    digests, flying = [], []
    for i, step in enumerate(job["steps"] or []):
        op = step["op"]
        try:
            if op == "new_group":
                more = {}
                if step.get("local"):
                    more["use_local_synchronization"] = True
                if step.get("backend"):
                    more["backend"] = step["backend"]
                groups.append((dist.new_group(step["ranks"], **more), sorted(step["ranks"])))
            elif op == "exit":
                os._exit(step.get("code", 0))
            elif op == "share":  # a value each way in the default store
                store = dist.distributed_c10d._get_default_store()
                store.set("from PyTorch", step["text"])
                if store.get("from Go") != step["text"].encode():
                    raise AssertionError("the store has %s" % store.get("from Go"))
            else:
                group, ranks = groups[step.get("group", 0)]
                if job["rank"] in ranks:
                    begun = Step(group, ranks.index(job["rank"]), len(ranks), dict(step, ranks=ranks)).begin()
                    if step.get("flies"):
                        flying.append(begun)
                    else:
                        digests.append(begun.finish())
            if step.get("join"):
                for begun in flying:
                    begun.finish()
                flying = []
        except Exception as e:
            raise RuntimeError("step %d, %s: %s: %s" % (i, json.dumps(step), type(e).__name__, e)) from e
    for begun in flying:
        begun.finish()
    dist.barrier()
    if VERSION < (2, 5):
        # There destroying a group waits, with Python's lock, for a thread that may need that to
        # free what it did last: it has a moment to do so.
        time.sleep(0.2)
    dist.destroy_process_group()
    return digests


def answer(**what):
    print(json.dumps(what), file=answers, flush=True)


answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
torch.set_num_threads(1)
answer(version=torch.__version__)
for line in sys.stdin:
    job = json.loads(line)
    environment = dict(os.environ)
    os.environ.update(job.get("env", {}))
    try:
        answer(digests=play(job))
    except Exception as e:
        # PyTorch keeps some of a group that was not made: who has such a one ends.
        ends = not dist.is_initialized()
        if not ends:
            dist.destroy_process_group()
        answer(error="%s: %s" % (type(e).__name__, e), ends=ends)
        if ends:
            os._exit(1)
    os.environ.clear()
    os.environ.update(environment)
