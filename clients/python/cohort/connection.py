# SPDX-License-Identifier: Apache-2.0
"""Bytes and frames of a connection to an agent."""

import selectors
import socket
import struct
import threading
import time

from . import cbor, tensors
from .errors import RPCError

HELLO, WELCOME, REFUSE, CALL, REPLY, FAILURE, CANCEL, ITEM, END, CREDIT = 1, 2, 3, 16, 17, 18, 19, 20, 21, 22

# Items of a head, by kind of frame, and which of them lists tensors.
_ITEMS = {REPLY: (4, 2), FAILURE: (7, None), ITEM: (3, 1), END: (1, None), CREDIT: (2, None)}
MAX_HEAD = 256 << 20
_AT_ONCE = getattr(socket, "MSG_DONTWAIT", 0)


def wait_for(sock, event, timeout):
    """Waits until a socket can be read or written, and says whether it can. None is for ever."""
    with getattr(selectors, "PollSelector", selectors.SelectSelector)() as s:
        s.register(sock, event)
        return bool(s.select(timeout))


class Connection:
    """A socket. One thread reads, any number send."""

    def __init__(self, sock, peer):
        self.sock, self.peer = sock, peer
        self.sending = threading.Lock()
        self.buffer = bytearray()

    @classmethod
    def dial(cls, address, timeout):
        try:
            if address.startswith("unix:"):
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.settimeout(timeout)
                name = address[len("unix:"):]
                sock.connect("\0" + name[1:] if name.startswith("@") else name)
            else:
                host, _, port = address.rpartition(":")
                if not host or not port.isdigit():
                    raise ValueError("the address %r: want host:port, unix:/path or unix:@name" % address)
                sock = socket.create_connection((host.strip("[]"), int(port)), timeout)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as e:
            raise RPCError("unreachable", str(e), peer=address) from None
        return cls(sock, address)

    def read(self, n):
        """Returns n bytes, or raises EOFError."""
        while len(self.buffer) < n:
            b = self.sock.recv(max(n - len(self.buffer), 65536))
            if not b:
                raise EOFError
            self.buffer += b
        b = bytes(self.buffer[:n])
        del self.buffer[:n]
        return b

    def read_into(self, view):
        """Fills view, most of it straight from the system."""
        have = min(len(self.buffer), len(view))
        view[:have] = self.buffer[:have]
        del self.buffer[:have]
        while have < len(view):
            n = self.sock.recv_into(view[have:])
            if not n:
                raise EOFError
            have += n

    def send(self, *parts, until=None):
        """Sends parts as one, whoever else sends.

        until is when time is up, by time.monotonic(): TimeoutError. Whatever ends it in
        the middle, which may be a KeyboardInterrupt, ends the connection, too.
        """
        if not self.sending.acquire(timeout=-1 if until is None else max(until - time.monotonic(), 0)):
            raise TimeoutError
        sent, begun = 0, False
        try:
            if sum(map(len, parts)) <= 65536:  # one system call
                parts = (b"".join(parts),)
            for p in parts:
                view = memoryview(p)
                while view:
                    begun = True
                    try:
                        n = self.sock.send(view, _AT_ONCE)
                        sent, view = sent + n, view[n:]
                    except BlockingIOError:
                        begun = sent > 0
                        if not wait_for(self.sock, selectors.EVENT_WRITE, None if until is None else max(until - time.monotonic(), 0)):
                            raise TimeoutError from None
        except BaseException:
            if begun:
                self.end()
            raise
        finally:
            self.sending.release()

    def send_frame(self, kind, head, data=(), until=None):
        """Sends a frame of a head and the bytes of tensors."""
        head = cbor.encode(head) if not isinstance(head, bytes) else head
        n = 4 + len(head) + sum(len(d) for d in data)
        self.send(struct.pack("<QI", kind << 56 | n, len(head)) + head, *data, until=until)

    def read_frame(self, limit, tensor_kind):
        """Returns the kind, the items of the head and the bytes of the next frame."""
        word, = struct.unpack("<Q", self.read(8))
        kind, n = word >> 56, word & (1 << 56) - 1
        if n < 4 or n > limit:
            raise RPCError("protocol", "a frame of %d bytes, where 4 to %d are allowed" % (n, limit), peer=self.peer)
        size, = struct.unpack("<I", self.read(4))
        if size > n - 4 or size > MAX_HEAD:
            raise RPCError("protocol", "a head of %d bytes in a frame of %d" % (size, n), peer=self.peer)
        raw = self.read(size)
        if kind in (WELCOME, REFUSE):
            if n != 4 + size:
                raise RPCError("protocol", "tensors in a frame of kind %d" % kind, peer=self.peer)
            return kind, self._head(raw, None), n
        if kind not in _ITEMS:
            raise RPCError("protocol", "a frame of kind %d" % kind, peer=self.peer)
        count, listed = _ITEMS[kind]
        # The list of tensors comes before the values that refer to them.
        found, later = [], []
        head = self._head(raw, lambda i: later.append(i) or _Index(i))
        if len(head) != count:
            raise RPCError("protocol", "a head of %d items, want %d" % (len(head), count), peer=self.peer)
        specs = tensors.check(head[listed] if listed is not None else None, n - 4 - size)
        found = tensors.receive(specs, self.read_into, tensor_kind)
        if any(i >= len(found) for i in later):
            raise RPCError("protocol", "a value that refers to a tensor that did not come", peer=self.peer)
        if later:
            head = _resolve(head, found)
        return kind, head, n

    def _head(self, raw, tensor):
        try:
            head = cbor.decode(raw, tensor)
        except cbor.FormatError as e:
            raise RPCError("protocol", "a head that cannot be read: %s" % e, peer=self.peer) from None
        if not isinstance(head, list):
            raise RPCError("protocol", "a head that is no array", peer=self.peer)
        return head

    def end(self):
        """Ends the connection for all who use it."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self):
        self.end()
        self.sock.close()


class _Index:
    """Stands for a tensor until it has come."""

    def __init__(self, i):
        self.i = i


def _resolve(v, found):
    if isinstance(v, _Index):
        return found[v.i]
    if isinstance(v, list):
        return [_resolve(x, found) for x in v]
    if isinstance(v, dict):
        return {k: _resolve(x, found) for k, x in v.items()}
    return v
