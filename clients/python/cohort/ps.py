# SPDX-License-Identifier: Apache-2.0
"""A client of Cohort's parameter servers: rows of tables are pulled, gradients are pushed.

    import cohort.ps, numpy as np
    users = {"name": "users", "width": 8, "optimizer": {"kind": "adagrad", "lr": 0.05}}
    with cohort.ps.connect(["127.0.0.1:4000", "127.0.0.1:4001"], tables=[users]) as c:
        rows = c.pull({"users": [7, 9, 7]})["users"]        # float32 [3, 8]
        c.push({"users": ([7, 9], np.ones((2, 8), np.float32))})

Addresses are in the order of the servers' numbers. A worker makes steps: push ends one. With
PyTorch, lookup returns rows that gradients flow to, and step pushes what backward has found:

    out = c.lookup({"users": ids})["users"]                 # a tensor that requires gradients
    loss(out).backward()
    c.step()

EmbeddingBag is a module that does this. prefetch asks for the rows of a later batch, so that
they travel while this one is computed. With batched updates, update pushes and returns the
new rows. docs/parameter-server.md describes the methods.
"""

import json
import secrets
import threading
import time

import numpy as np

from .client import connect as _connect
from .errors import RPCError

VERSION = 1
NUM_PARTITIONS = 1024

# Failures of a connection. The request is made again on another one.
_LOST = ("connection lost", "unreachable", "closed", "timeout")


def partition_of(keys):
    """The partitions of keys: the last step of MurmurHash3 for 64 bits, modulo 1024."""
    x = np.atleast_1d(np.asarray(keys, np.int64)).view(np.uint64).copy()
    with np.errstate(over="ignore"):
        x ^= x >> np.uint64(33)
        x *= np.uint64(0xFF51AFD7ED558CCD)
        x ^= x >> np.uint64(33)
        x *= np.uint64(0xC4CEB9FE1A85EC53)
        x ^= x >> np.uint64(33)
    return (x % np.uint64(NUM_PARTITIONS)).astype(np.int64)


def spread(servers):
    """The server of each partition, an array of 1024 numbers.

    A further server takes partitions one by one, always the last one of the first server
    that has most.
    """
    if not 1 <= servers <= NUM_PARTITIONS:
        raise ValueError("%r servers: want 1 to %d" % (servers, NUM_PARTITIONS))
    has = [list(range(NUM_PARTITIONS))]
    for n in range(1, servers):
        taken = []
        for _ in range(NUM_PARTITIONS // (n + 1)):
            most = max(range(n), key=lambda s: len(has[s]))
            taken.append(has[most].pop())
        has.append(sorted(taken))
    of = np.empty(NUM_PARTITIONS, np.int64)
    for server, partitions in enumerate(has):
        of[partitions] = server
    return of


def connect(addresses, **options):
    """Connects to all servers of a job and returns a Client; see there for the options."""
    return Client(addresses, **options)


class _Server:
    """A server, on a connection that is made again if it is lost."""

    def __init__(self, client, index, address):
        self.client, self.index, self.address = client, index, address
        self.agent, self.history, self.number, self.next = None, None, 0, 0
        self.lock = threading.Lock()

    def open(self):
        """Returns the connection. A new one begins with ps.Open."""
        with self.lock:
            if self.agent is not None:
                return self.agent
            c = self.client
            agent = _connect(self.address, c.token, timeout=c.timeout, tls=c.tls, tensors="widened")
            try:
                got = agent.call("ps.Open", {"Version": VERSION, "Server": self.index, "Client": c.id, "Worker": c.worker,
                                             "Settings": json.dumps(c.settings).encode()})
                if self.history not in (None, got["History"]) or got["Number"] < self.number:
                    raise RPCError("history", "server %d at %s has come back without pushes that it had acknowledged" % (self.index, self.address))
            except BaseException:
                agent.close()
                raise
            self.history, self.next = got["History"], got["Next"]
            c.agree(json.loads(bytes(got["Settings"])))
            self.agent = agent
            return agent

    def forget(self, agent):
        with self.lock:
            if self.agent is agent and agent is not None:
                self.agent = None
                agent.close()

    def call(self, method, arguments):
        """Calls a method, on further connections too, until the client's timeout."""
        until = time.monotonic() + self.client.timeout
        while True:
            agent = None
            try:
                agent = self.open()
                return agent.call(method, arguments, timeout=max(0.01, until - time.monotonic()))
            except RPCError as e:
                if e.kind not in _LOST or time.monotonic() > until - 0.1:
                    raise
                self.forget(agent)
                time.sleep(0.05)  # the server may be starting


class Client:
    """Tables on servers. One thread uses a client.

    addresses    "host:port" or "unix:/path" of each server, in the order of their numbers
    tables       schemas as dicts; servers that lack them make them, others compare
    worker       the number of this worker, 0 to workers-1; -1: a reader, which pushes nothing
    consistency  "synchronous", "bounded:STEPS" or "asynchronous"; behind the last two perhaps
                 ",batch:K", ",batch:K:sum" or ",batch:K:mean"; the same of all workers
    job          its name; servers of another refuse the client
    token, tls   as in cohort.connect
    timeout      seconds for a request, with all connections that it takes
    """

    def __init__(self, addresses, tables=(), worker=0, workers=1, consistency="synchronous", job="", token=None, tls=False, timeout=60.0):
        if isinstance(addresses, str):
            addresses = [addresses]
        self.worker, self.token, self.tls, self.timeout = worker, token, tls, timeout
        self.id = secrets.randbits(64)
        self.settings = {"servers": len(addresses), "tables": list(tables)}
        if job:
            self.settings["job"] = job
        self.synchronous = False
        self.batched = False
        if worker >= 0:
            self.settings["workers"] = workers
            self.settings["consistency"] = _consistency(consistency)
            self.batched = "batch" in self.settings["consistency"]
            # Others wait for each step of this worker, also for one without gradients.
            self.synchronous = self.settings["consistency"]["mode"] != "asynchronous" or self.batched
        self.schemas = {}
        self._of = spread(len(addresses))
        self._grads, self._unknown = {}, None
        self._ahead = {}  # by table: what prefetch was asked for
        self._servers = [_Server(self, i, a) for i, a in enumerate(addresses)]
        try:
            for s in self._servers:
                self._retry_open(s)
        except BaseException:
            self.close()
            raise
        self.step_number = max([s.next for s in self._servers])

    def _retry_open(self, server):
        until = time.monotonic() + self.timeout
        while True:
            try:
                return server.open()
            except RPCError as e:
                if e.kind not in _LOST or time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def agree(self, settings):
        """Takes the schemas that a server has."""
        for t in settings.get("tables", ()):
            self.schemas[t["name"]] = t

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        for s in self._servers:
            s.forget(s.agent)

    def leave(self):
        """Says that this worker makes no more steps, so that nobody waits for it."""
        for s in self._servers:
            s.call("ps.Leave", {"Client": self.id, "Worker": self.worker})

    def status(self):
        """What each server says of itself."""
        return [s.call("ps.Status", {}) for s in self._servers]

    def _schema(self, table):
        if table not in self.schemas:
            raise KeyError("the servers have no table %r; they have %s" % (table, ", ".join(sorted(self.schemas)) or "none"))
        return self.schemas[table]

    def server_of(self, table, keys):
        """The server of each key."""
        rows = self._schema(table).get("rows", 0)
        if rows:
            if len(keys) and not (0 <= keys.min() and keys.max() < rows):
                raise KeyError("table %r has the keys 0 to %d" % (table, rows - 1))
            return ((keys + 1) * len(self._servers) - 1) // rows
        return self._of[partition_of(keys)]

    def pull(self, requests):
        """Returns the rows of keys of several tables, {table: float32 [keys, width]}.

        Keys that come several times travel once, and there is one request a server.
        """
        return self._pull(requests, self.step_number)

    def _pull(self, requests, step):
        parts = [[] for _ in self._servers]
        wanted = {}
        for table, keys in requests.items():
            once, at = np.unique(np.asarray(keys, np.int64).reshape(-1), return_inverse=True)
            of = self.server_of(table, once)
            wanted[table] = once, at.reshape(-1), of
            for i in range(len(self._servers)):
                if (of == i).any():
                    parts[i].append({"Table": table, "Keys": once[of == i]})
        answers = self._each([{"Worker": self.worker, "Step": step, "Parts": p} if p else None for p in parts], "ps.Pull")
        out = {}
        for table, (once, at, of) in wanted.items():
            schema = self._schema(table)
            rows = np.zeros((len(once), schema["width"]), np.float32)
            for i, answer in enumerate(answers):
                for part, got in zip(parts[i], answer["Rows"] if answer else ()):
                    if part["Table"] == table:
                        rows[of == i] = _decode(schema, got)
            out[table] = rows[at]
        return out

    def prefetch(self, requests, step=None):
        """Asks for the rows of a later step, the next one by default, and does not wait.

        Returns a Prefetched, whose result is what pull would return. lookup, and so
        EmbeddingBag, takes the rows if it is called in that step with the same ids: the same
        object. Servers that are synchronous answer when the steps before have been applied.
        """
        step = self.step_number + 1 if step is None else step
        ahead = Prefetched(self, requests, step)
        for table, ids in requests.items():
            self._ahead[table] = [a for a in self._ahead.get(table, ()) if a[0] >= self.step_number] + [(step, ids, ahead)]
        return ahead

    def _take(self, table, ids):
        """The rows of ids that prefetch was asked for, None if it was not."""
        for i, (step, known, ahead) in enumerate(self._ahead.get(table, ())):
            if step == self.step_number and known is ids:
                del self._ahead[table][i]
                return ahead.result()[table]
        return None

    def _each(self, arguments, method, done=lambda server, error: None):
        """Calls a method of all servers at once; None is no call."""
        out, errors = [None] * len(arguments), [None] * len(arguments)

        def one(i):
            try:
                out[i] = self._servers[i].call(method, arguments[i])
            except BaseException as e:  # raised below, by the caller's thread
                errors[i] = e
            done(self._servers[i], errors[i])
        todo = [i for i, a in enumerate(arguments) if a is not None]
        threads = [threading.Thread(target=one, args=(i,)) for i in todo[1:]]
        for t in threads:
            t.start()
        if todo:
            one(todo[0])
        for t in threads:
            t.join()
        for e in errors:
            if e is not None:
                raise e
        return out

    def add(self, table, keys, gradient):
        """Adds a gradient [keys, width] to what the next step pushes. Keys may repeat."""
        keys = np.asarray(keys, np.int64).reshape(-1)
        gradient = np.asarray(gradient, np.float32)
        if gradient.shape != (len(keys), self._schema(table)["width"]):
            raise ValueError("the gradient of table %r is %s: want [%d, %d]" % (table, list(gradient.shape), len(keys), self._schema(table)["width"]))
        self._grads.setdefault(table, []).append((keys, gradient))

    def step(self):
        """Pushes the gradients of the step to the servers, waits until they have them, and begins the next step."""
        self._step()

    def update(self, gradients):
        """Pushes {table: (keys, gradient)} as a step to servers with batched updates, waits until
        the batch has been applied, and returns the new rows, {table: float32 [keys, width]}."""
        if not self.batched:
            raise ValueError("update wants batched updates: give connect a consistency such as \"asynchronous,batch:8:mean\"")
        for table, (keys, gradient) in gradients.items():
            self.add(table, keys, gradient)
        parts, answers = self._step(rows=True)
        out = {}
        for table, (keys, _) in gradients.items():
            known, rows = [np.zeros(0, np.int64)], [np.zeros((0, self._schema(table)["width"]), np.float32)]
            for p, answer in zip(parts, answers):
                for part, got in zip(p, answer["Rows"] if answer else ()):
                    if part["Table"] == table:
                        known.append(part["Keys"])
                        rows.append(_decode(self._schema(table), got))
            known, rows = np.concatenate(known), np.concatenate(rows)
            order = np.argsort(known)
            keys = np.asarray(keys, np.int64).reshape(-1)
            out[table] = rows[order[np.searchsorted(known, keys, sorter=order)]]
        return out

    def _step(self, rows=False):
        """step; returns what was pushed to each server, and the answers, which come with new rows, or before a batch is applied."""
        if self.worker < 0:
            raise ValueError("a reader pushes nothing: give worker=0")
        if self._unknown is not None:
            raise RPCError("closed", "nobody knows whether an earlier push has arrived: connect again") from self._unknown
        parts = [[] for _ in self._servers]
        for table in sorted(self._grads):
            keys = np.concatenate([k for k, _ in self._grads[table]])
            once, at = np.unique(keys, return_inverse=True)
            gradient = np.zeros((len(once), self._schema(table)["width"]), np.float32)
            np.add.at(gradient, at.reshape(-1), np.concatenate([g for _, g in self._grads[table]]))
            of = self.server_of(table, once)
            for i in range(len(self._servers)):
                if (of == i).any():
                    parts[i].append({"Table": table, "Keys": once[of == i], "Grads": gradient[of == i]})
        self._grads = {}
        arguments = [None] * len(parts)
        for i, p in enumerate(parts):
            if self._servers[i].next > self.step_number or not p and not self.synchronous:
                continue  # it has had this step, or nothing waits for it
            arguments[i] = {"Client": self.id, "Worker": self.worker, "Number": self._servers[i].number + 1, "Kept": not rows,
                            "Pushes": [{"Step": self.step_number, "Parts": p}]}
        answers = self._each(arguments, "ps.Push", self._pushed)
        self.step_number += 1
        return parts, answers

    def _pushed(self, server, error):
        """Notes how a push to a server went."""
        if error is None:
            server.number += 1
            server.next = self.step_number + 1
        elif not isinstance(error, RPCError) or error.kind in _LOST:
            self._unknown = error  # the server may have it, or not

    def push(self, gradients):
        """Pushes {table: (keys, gradient)}, together with what was added, as a step."""
        for table, (keys, gradient) in gradients.items():
            self.add(table, keys, gradient)
        self.step()

    def lookup(self, requests):
        """Returns the rows of ids of several tables as PyTorch tensors [*ids.shape, width].

        It is one request a server. Gradients that flow to the rows are pushed by the next step.
        """
        import torch
        found = {table: self._take(table, ids) for table, ids in requests.items()}
        missing = {table: _flat(ids) for table, ids in requests.items() if found[table] is None}
        if missing:
            found.update(self.pull(missing))
        pulled = _torch_function()
        anchor = torch.zeros(0, requires_grad=torch.is_grad_enabled())
        return {table: pulled.apply(anchor, self, table, torch.as_tensor(ids).cpu(), torch.from_numpy(found[table])) for table, ids in requests.items()}


class Prefetched:
    """Rows that are on their way."""

    def __init__(self, client, requests, step):
        self._rows, self._error = None, None
        requests = {table: _flat(ids) for table, ids in requests.items()}

        def pull():
            try:
                self._rows = client._pull(requests, step)
            except BaseException as e:  # raised by result
                self._error = e
        self._thread = threading.Thread(target=pull, daemon=True)
        self._thread.start()

    def result(self):
        """Waits for the rows, {table: float32 [keys, width]}."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._rows


def _flat(ids):
    """Ids, which may be a tensor of PyTorch, as a flat array."""
    return np.asarray(ids.cpu() if hasattr(ids, "cpu") else ids, np.int64).reshape(-1)


def _consistency(text):
    """What servers call a consistency."""
    mode, comma, batch = text.partition(",")
    mode, colon, bound = mode.partition(":")
    words = batch.split(":")
    if (mode not in ("synchronous", "bounded", "asynchronous") or bool(colon) != (mode == "bounded") or colon and not bound.isdigit()
            or comma and not (mode != "synchronous" and words[0] == "batch" and len(words) in (2, 3) and words[1].isdigit() and int(words[1]) > 0
                              and words[2:] in ([], ["sum"], ["mean"]))):
        raise ValueError("consistency=%r: want \"synchronous\", \"bounded:STEPS\" or \"asynchronous\", perhaps with \",batch:K:mean\" behind the last two" % (text,))
    out = {"mode": mode}
    if bound and int(bound):
        out["bound"] = int(bound)
    if comma:
        out["batch"] = int(words[1])
        if words[2:] == ["mean"]:
            out["mean"] = True
    return out


def _decode(schema, got):
    """The float32 values of rows as they travel."""
    dtype = schema.get("wire") or schema.get("dtype") or "float32"
    if dtype == "int8":  # and a float32 scale behind them
        scale = np.ascontiguousarray(got[:, -4:]).view("<f4")
        return got[:, :-4].view(np.int8).astype(np.float32) * scale
    return got.astype(np.float32)


_FUNCTION = []


def _torch_function():
    """The autograd function whose backward pass collects gradients of rows."""
    if not _FUNCTION:
        import torch

        class Pulled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, anchor, client, table, ids, rows):
                ctx.client, ctx.table, ctx.ids = client, table, ids
                return rows.reshape(*ids.shape, rows.shape[-1])

            @staticmethod
            def backward(ctx, gradient):
                ctx.client.add(ctx.table, ctx.ids.numpy(), gradient.detach().cpu().float().reshape(-1, gradient.shape[-1]).numpy())
                return None, None, None, None, None
        _FUNCTION.append(Pulled)
    return _FUNCTION[0]


def __getattr__(name):
    """EmbeddingBag, which needs PyTorch."""
    if name != "EmbeddingBag":
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    import torch

    class EmbeddingBag(torch.nn.Module):
        """torch.nn.EmbeddingBag with mode "sum" or "mean", whose weight is a table on servers.

        Its forward pass pulls the rows of the batch, its backward pass collects their
        gradients, and the client's step pushes these.
        """

        def __init__(self, client, table, mode="sum"):
            super().__init__()
            if mode not in ("sum", "mean"):
                raise ValueError("mode=%r: want \"sum\" or \"mean\"" % (mode,))
            self.client, self.table, self.mode = client, table, mode

        def forward(self, ids, offsets=None):
            rows = self.client.lookup({self.table: ids})[self.table]
            if offsets is None:
                if ids.dim() == 2:
                    return rows.sum(1) if self.mode == "sum" else rows.mean(1)
                return rows
            sizes = torch.diff(offsets, append=torch.tensor([len(ids)]))
            bag = torch.repeat_interleave(torch.arange(len(offsets)), sizes)
            out = torch.zeros(len(offsets), rows.shape[-1]).index_add(0, bag, rows)
            return out if self.mode == "sum" else out / sizes.clamp(min=1).unsqueeze(1)

    globals()[name] = EmbeddingBag
    return EmbeddingBag
