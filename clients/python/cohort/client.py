# SPDX-License-Identifier: Apache-2.0
"""Agents, calls and streams."""

import concurrent.futures
import os
import queue
import re
import secrets
import threading
import time

from . import cbor, connection, handshake, tensors
from .errors import RPCError

VERSION = 1
_HELLO_LIMIT = 4096
_WINDOW = 1 << 20  # credit of a stream
_NOTHING = {}  # what an empty struct is on the wire
_STALL = 5.0  # seconds that an agent may take nothing while it is told something short


def connect(address, token=None, *, name=None, to="", timeout=60.0, connect_timeout=10.0, tensors="numpy", max_message=1 << 30, tls=False):
    """Connects to an agent and returns it as an Agent.

    address    "host:port", "unix:/path" or "unix:@name"
    token      64 hexadecimal digits; None: of COHORT_TOKEN or COHORT_TOKEN_FILE
    name       how the agent's messages call this client
    to         the name of the agent that is meant; "" for whoever is there
    timeout    seconds for a call that has no limit of its own, 0 for none
    tensors    what tensors arrive as: "numpy", "widened" or "torch"; widened is NumPy with
               float32 in place of bfloat16, which NumPy does not have
    max_message  the largest message that is taken, in bytes
    tls        go through TLS, as agents demand from other hosts (wants pyOpenSSL and cryptography)
    """
    if tensors not in ("numpy", "widened", "torch"):
        raise ValueError("tensors=%r: want \"numpy\", \"widened\" or \"torch\"" % (tensors,))
    if tensors == "torch":
        import torch  # noqa: F401  (missing, it is better said now than by the first answer)
    name = name or "python-%d" % os.getpid()
    if not re.fullmatch(r"[A-Za-z0-9_.:-]{1,127}", name):
        raise ValueError("the name %r: want 1 to 127 of A-Z a-z 0-9 _ . : -" % name)
    secret = handshake.load_token(token)
    conn = connection.Connection.dial(address, connect_timeout)
    try:
        session = bytes(32)
        if tls:
            from . import tls as wrapped
            session = wrapped.wrap(conn, secret)
        handshake.handshake(conn, secret, session)
        conn.send_frame(connection.HELLO, [VERSION, name, -1, secrets.token_hex(8), max_message, to])
        kind, head, _ = conn.read_frame(_HELLO_LIMIT + 8, tensors)
        if kind == connection.REFUSE and len(head) >= 2:
            raise RPCError(str(head[0]), str(head[1]), peer=to or address)
        if kind != connection.WELCOME or len(head) < 5 or head[0] != VERSION or not isinstance(head[1], str) or not isinstance(head[4], int):
            raise RPCError("protocol", "a welcome that is none", peer=address)
        conn.sock.settimeout(None)
    except (EOFError, OSError) as e:
        conn.close()
        raise RPCError("unreachable", str(e) or "the agent closed the connection", peer=address) from None
    except BaseException:
        conn.close()
        raise
    return Agent(conn, head[1], head[2], head[4], timeout, tensors, max_message)


class Agent:
    """An agent on the other side of a connection. Any number of threads may call it."""

    def __init__(self, conn, name, rank, limit, timeout, kind, max_message):
        self.name, self.rank = name, rank
        self._conn, self._limit, self._timeout, self._kind, self._max = conn, limit, timeout, kind, max_message
        self._lock = threading.Lock()
        self._next, self._pending, self._lost = 1, {}, None
        self._reader = threading.Thread(target=self._read, name="cohort-rpc " + name, daemon=True)
        self._reader.start()

    def __repr__(self):
        return "<cohort.Agent %s at %s>" % (self.name, self._conn.peer)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        """Closes the connection; calls under way fail."""
        self._fail(RPCError("closed", "the connection was closed on this side", peer=self.name))
        self._conn.close()
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def call(self, method, arguments=_NOTHING, *, timeout=None):
        """Calls a method and returns its result. A method of struct{} takes no arguments."""
        timeout = self._timeout if timeout is None else timeout
        until = time.monotonic() + timeout
        f = self.call_async(method, arguments, timeout=timeout)
        # The agent ends the call, too; what it says of that is better than our own clock.
        try:
            return f.result(until - time.monotonic() + 1 if timeout else None)
        except concurrent.futures.TimeoutError:
            f.cancel()
            raise RPCError("timeout", "no answer within %g s" % timeout, method=method, peer=self.name) from None

    def call_async(self, method, arguments=_NOTHING, *, timeout=None):
        """Begins a call and returns a concurrent.futures.Future of its result. Canceling it cancels the call."""
        timeout = self._timeout if timeout is None else timeout
        f = _Call(self, method)
        self._begin(f, method, arguments, timeout, timeout)
        return f

    def stream(self, method, *, timeout=0):
        """Opens a stream and returns it as a Stream."""
        s = Stream(self, method)
        self._begin(s, method, {}, timeout, timeout or self._timeout)
        return s

    def methods(self):
        """Returns what the agent serves: a dict from names to descriptions of types.

        Methods that take or give references are left out: only agents can call them.
        """
        return {m["Name"]: m["Types"] for m in self.call("cohort.rpc.describe") if "rref<" not in m["Types"]}

    def _begin(self, call, method, arguments, timeout, patience):
        """Sends a call that ends after timeout, and gives up if that takes longer than patience."""
        out = tensors.Outgoing()
        body = cbor.encode(arguments, out.add)
        with self._lock:
            if self._lost is not None:
                raise self._error(self._lost, method)
            number = self._next
            self._next += 1
            call.number = number
            self._pending[number] = call
        front = cbor.encode([number, method, int(timeout * 1e6), 0, None, out.specs or None])
        head = b"\x87" + front[1:] + body  # an array of 7, not of 6
        try:
            self._check_size(method, len(head), out.data)
            self._send(connection.CALL, head, out.data, until=time.monotonic() + patience if patience else None, method=method)
        except BaseException:
            self._take(number)
            raise

    def _check_size(self, method, head, data):
        n = 4 + head + sum(len(d) for d in data)
        if n > self._limit:
            raise RPCError("too large", "a message of %d bytes, of which the agent takes %d" % (n, self._limit), method=method, peer=self.name)

    def _send(self, kind, head, data=(), until=None, method=""):
        try:
            self._conn.send_frame(kind, head, data, until)
        except TimeoutError:
            raise RPCError("timeout", "the agent took no data in the time that there was", method, self.name) from None
        except OSError as e:
            raise self._error(self._lost or RPCError("connection lost", str(e), peer=self.name), method) from None

    def _tell(self, kind, head):
        """Sends a short message about a call. An agent that does not take even that is given up."""
        try:
            self._send(kind, head, until=time.monotonic() + _STALL)
        except RPCError as e:
            if e.kind == "timeout":
                self._conn.end()
            raise

    def _take(self, number):
        with self._lock:
            return self._pending.pop(number, None)

    def _cancel(self, call):
        if self._take(call.number) is not None:
            try:
                self._tell(connection.CANCEL, [call.number])
            except RPCError:
                pass

    def _error(self, e, method=""):
        return RPCError(e.kind, e.message, method, self.name, e.stack, e.code, e.value)

    def _fail(self, error):
        with self._lock:
            if self._lost is None:
                self._lost = error
            pending, self._pending = self._pending, {}
        for c in pending.values():
            c._settle(None, self._error(error, c.method))

    def _read(self):
        try:
            while True:
                self._frame(*self._conn.read_frame(self._max, self._kind))
        except RPCError as e:
            self._fail(e)
        except (EOFError, OSError, ValueError) as e:
            self._fail(RPCError("connection lost", str(e) or "the agent closed it", peer=self.name))
        finally:
            self._conn.close()

    def _frame(self, kind, head, size):
        number = head[0]
        if type(number) is not int:
            raise RPCError("protocol", "a call's number that is none")
        if kind in (connection.REPLY, connection.FAILURE):
            c = self._take(number)
            if c is None:
                return  # canceled meanwhile
            if kind == connection.REPLY:
                c._settle(head[3], None)
            elif all(isinstance(x, str) for x in head[2:6]):
                c._settle(None, RPCError(head[2], head[3], c.method, self.name, head[4], head[5], head[6]))
            else:
                c._settle(None, RPCError("protocol", "a failure that does not say what it is", c.method, self.name))
            return
        with self._lock:
            c = self._pending.get(number)
        if isinstance(c, Stream):
            c._heard(kind, head, size)


class _Call(concurrent.futures.Future):
    def __init__(self, agent, method):
        super().__init__()
        self._agent, self.method, self.number = agent, method, 0

    def _settle(self, value, error):
        if not self.set_running_or_notify_cancel():
            return
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)

    def cancel(self):
        done = super().cancel()
        if done:
            self._agent._cancel(self)
        return done


class Stream:
    """A conversation. Iterating over it gives what the agent sends, until it ends."""

    _END = object()

    def __init__(self, agent, method):
        self._agent, self.method, self.number = agent, method, 0
        self._items, self._room, self._credit = queue.SimpleQueue(), threading.Condition(), _WINDOW
        self._order = threading.Lock()  # of what is sent
        self._consumed, self._over, self._error, self._closed = 0, False, None, False

    def send(self, value, timeout=None):
        """Sends an item, as soon as the agent has room for it."""
        out = tensors.Outgoing()
        body = cbor.encode(value, out.add)
        front = cbor.encode([self.number, out.specs or None])
        head = b"\x83" + front[1:] + body
        size = 4 + len(head) + sum(len(d) for d in out.data)
        self._agent._check_size(self.method, len(head), out.data)
        until = None if timeout is None else time.monotonic() + timeout
        with self._order:
            with self._room:
                if self._closed:
                    raise RPCError("closed", "the sending side of the stream is closed", self.method, self._agent.name)
                if not self._room.wait_for(lambda: self._credit > 0 or self._over, timeout):
                    raise RPCError("timeout", "the agent took nothing for %g s" % timeout, self.method, self._agent.name)
                if self._over:
                    raise self._error or RPCError("closed", "the agent ended the stream", self.method, self._agent.name)
                self._credit -= size
            try:
                self._agent._send(connection.ITEM, head, out.data, until, self.method)
            except BaseException:
                with self._room:
                    self._credit += size  # if it was not begun; else the connection has ended
                raise

    def close_send(self):
        """Says that no more is sent."""
        with self._order:
            with self._room:
                if self._closed or self._over:
                    return
                self._closed = True
            self._agent._tell(connection.END, [self.number])

    def recv(self, timeout=None):
        """Returns the next item. At the end of the stream it raises EOFError, or what the method failed with."""
        try:
            value, size = self._items.get(timeout=timeout)
        except queue.Empty:
            raise RPCError("timeout", "no item within %g s" % timeout, self.method, self._agent.name) from None
        if value is Stream._END:
            self._items.put((value, 0))  # for the next who asks
            if self._error is not None:
                raise self._error
            raise EOFError("the stream has ended")
        self._consumed += size
        if self._consumed >= _WINDOW // 2 and not self._over:
            n, self._consumed = self._consumed, 0
            try:
                self._agent._tell(connection.CREDIT, [self.number, n])
            except RPCError:
                pass  # the connection has ended, which the next who asks hears
        return value

    def __iter__(self):
        while True:
            try:
                yield self.recv()
            except EOFError:
                return

    def close(self):
        """Ends the stream, whether or not it has come to its end."""
        if not self._over:
            self._agent._cancel(self)
            self._settle(None, RPCError("canceled", "the stream was closed on this side", self.method, self._agent.name))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def _heard(self, kind, head, size):
        if kind == connection.ITEM:
            self._items.put((head[2], size))
        elif kind == connection.CREDIT and type(head[1]) is int and head[1] >= 0:
            with self._room:
                self._credit += head[1]
                self._room.notify_all()

    def _settle(self, value, error):
        with self._room:
            if self._over:
                return
            self._over, self._error = True, error
            self._room.notify_all()
        self._items.put((Stream._END, 0))
