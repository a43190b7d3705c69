# SPDX-License-Identifier: Apache-2.0
"""What comes from an agent that lies, and what must not leave. python3 -m unittest discover -s tests"""

import array
import datetime
import random
import signal
import socket
import struct
import threading
import time
import unittest
import unittest.mock

import numpy as np

import cohort
from cohort import cbor, connection, tensors

TOKEN = "5d" * 32


class Values(unittest.TestCase):
    def test_there_and_back(self):
        when = datetime.datetime(2026, 11, 21, 1, 2, 3, 456789, datetime.timezone.utc)
        for v in [0, 23, 24, 255, 256, 65536, 2**64 - 1, -1, -2**63, 1.5, "", "ü", b"", b"\0x", None, True, False, [], [1, [2]],
                  {}, {"a": {}, 3: 4}, array.array("d", [1, -2]), array.array("q"), when]:
            got = cbor.decode(cbor.encode(v))
            self.assertEqual(got, v)
            self.assertIs(type(got), type(v))

    def test_what_cannot_travel(self):
        for v in [object(), {1.5: 2}, 2**64, -2**64 - 1, datetime.datetime.now(), np.array([1j]), {"deep": 1}]:
            if v == {"deep": 1}:
                for _ in range(70):
                    v = [v]
            with self.assertRaises((TypeError, ValueError)):
                out = tensors.Outgoing()
                cbor.encode(v, out.add)

    def test_bad_items(self):
        for raw in ["", "18", "5f", "9f", "ff", "1c", "61ff", "62c3", "82", "8201", "a1", "a161", "a2616101616101", "a1f600", "c001", "d8454101",
                    "d8554100", "d9434f00", "f8ff", "0000", "9b7fffffffffffffff", "bb7fffffffffffffff", "7b7fffffffffffffff", "81" * 70 + "00",
                    cbor.encode("x").hex() + "00", "c0" + cbor.encode("2026-13-01T00:00:00Z").hex()]:
            with self.assertRaises(cbor.FormatError, msg=raw):
                cbor.decode(bytes.fromhex(raw))

    def test_any_bytes(self):
        r = random.Random(1)
        good = cbor.encode([1, "text", {"a": [b"x", 1.5, None]}, array.array("f", [1])])
        for _ in range(20000):
            raw = bytearray(good if r.random() < 0.7 else r.randbytes(r.randrange(24)))
            for _ in range(r.randrange(1, 4)):
                if raw:
                    raw[r.randrange(len(raw))] = r.randrange(256)
            try:
                cbor.decode(raw)
            except cbor.FormatError:
                pass

    def test_tensor_lists(self):
        self.assertEqual(tensors.check([[1, 2, 3]], 24), [(1, (2, 3), 24)])
        for specs, size in [([[1, 2]], 9), ([[0, 2]], 8), ([[10, 2]], 8), ([[1, -2]], 8), ([[1, 2**70]], 8), ([[]], 0), (5, 0), ([[1, "2"]], 8), (None, 1), ([[1] + [1] * 17], 4)]:
            with self.assertRaises(cohort.RPCError):
                tensors.check(specs, size)

    def test_tensor_once(self):
        out, x = tensors.Outgoing(), np.ones(3, np.float32)
        cbor.encode({"X": x, "Y": x}, out.add)
        self.assertEqual(out.specs, [[1, 3]])
        out.add(np.arange(6, dtype=np.int64).reshape(2, 3).T)
        self.assertEqual(np.frombuffer(out.data[1], np.int64).tolist(), [0, 3, 1, 4, 2, 5])


class Descriptions(unittest.TestCase):
    def test_methods_with_references(self):
        agent = unittest.mock.Mock(call=lambda method: [{"Name": "a.Plain", "Types": "text -> tensor"}, {"Name": "a.Make", "Types": "text -> rref<tensor>"},
                                                        {"Name": "a.On", "Types": "on rref<tensor>: text -> text"}])
        self.assertEqual(cohort.client.Agent.methods(agent), {"a.Plain": "text -> tensor"})


class Agents(unittest.TestCase):
    """Peers that are no agents, or have been and are no more."""

    def peer(self, serve):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def run():
            conn, _ = listener.accept()
            with conn:
                serve(conn)

        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(thread.join)
        return "127.0.0.1:%d" % listener.getsockname()[1]

    def test_a_stranger_that_closes(self):
        with self.assertRaisesRegex(cohort.RPCError, "token differs"):
            cohort.connect(self.peer(lambda c: c.recv(80)), TOKEN)

    def test_an_impostor(self):
        with self.assertRaisesRegex(cohort.RPCError, "could not prove"):
            cohort.connect(self.peer(lambda c: (c.recv(80), c.sendall(bytes(64)))), TOKEN)

    def test_a_peer_that_says_nothing(self):
        stop = threading.Event()
        address = self.peer(lambda c: stop.wait(10))
        with self.assertRaisesRegex(cohort.RPCError, "unreachable"):
            cohort.connect(address, TOKEN, connect_timeout=0.2)
        stop.set()

    def test_nobody(self):
        with self.assertRaisesRegex(cohort.RPCError, "refused"):
            cohort.connect("127.0.0.1:1", TOKEN)

    def test_tokens(self):
        for token in ["", "12", "zz" * 32]:
            with self.assertRaises(ValueError):
                cohort.connect("127.0.0.1:1", token)

    def lies(self, frame):
        """Returns the error of a call that a peer answers with a frame."""
        ours, theirs = socket.socketpair()
        self.addCleanup(theirs.close)
        agent = cohort.client.Agent(connection.Connection(ours, "peer"), "liar", 0, 1 << 20, 5, "numpy", 1 << 20)
        f = agent.call_async("m")
        theirs.sendall(frame)
        with self.assertRaises(cohort.RPCError) as caught:
            f.result(5)
        agent.close()
        return caught.exception.kind

    def frame(self, kind, head, tail=b"", size=None):
        head = head if isinstance(head, bytes) else cbor.encode(head)
        n = 4 + len(head) + len(tail) if size is None else size
        return struct.pack("<QI", kind << 56 | n, len(head)) + head + tail

    def test_lies(self):
        for frame in [self.frame(99, [1]), self.frame(17, [1]), self.frame(17, b"\xff"), self.frame(17, {}), self.frame(17, ["1", None, None, None]),
                      self.frame(17, [1, None, [[1, 2]], None]), self.frame(17, [1, None, None, None], b"more"), self.frame(17, [1, None, None, None], size=3),
                      self.frame(17, [1], size=1 << 40), self.frame(18, [1, None, 5, 6, 7, 8, 9]), self.frame(17, bytes.fromhex("8401f6f6d9434f00"))]:
            self.assertEqual(self.lies(frame), "protocol", frame)

    def test_the_end(self):
        ours, theirs = socket.socketpair()
        agent = cohort.client.Agent(connection.Connection(ours, "peer"), "gone", 0, 1 << 20, 5, "numpy", 1 << 20)
        f, s = agent.call_async("m"), agent.stream("s")
        theirs.close()
        for wait in (f.result, s.recv):
            with self.assertRaisesRegex(cohort.RPCError, "connection lost"):
                wait(5)
        with self.assertRaisesRegex(cohort.RPCError, "connection lost"):
            agent.call("m")
        agent.close()

    def deaf(self):
        """Returns an agent that takes nothing."""
        ours, theirs = socket.socketpair()
        self.addCleanup(theirs.close)
        agent = cohort.client.Agent(connection.Connection(ours, "peer"), "deaf", 0, 1 << 30, 60, "numpy", 1 << 20)
        self.addCleanup(agent.close)
        return agent

    @unittest.mock.patch("cohort.client._STALL", 0.2)
    def test_an_agent_that_takes_nothing(self):
        agent, began = self.deaf(), time.monotonic()
        with self.assertRaisesRegex(cohort.RPCError, "timeout: .*took no data"):
            agent.call("m", np.zeros(1 << 22), timeout=0.2)
        with self.assertRaisesRegex(cohort.RPCError, "connection lost"):  # the frame was half written
            agent.call("m")
        for size in 1, 10000:
            agent = self.deaf()
            with self.assertRaisesRegex(cohort.RPCError, "timeout: .*took no data"):
                while True:  # until there is no room for the next
                    agent.call_async("m", bytes(size), timeout=0.2)
            agent = self.deaf()
            s = agent.stream("s")
            with self.assertRaisesRegex(cohort.RPCError, "timeout: .*took no"):
                while True:
                    s.send(bytes(size), timeout=0.2)
            s.close()
        self.assertLess(time.monotonic() - began, 30)

    def test_close_while_a_stream_sends(self):
        agent = self.deaf()
        s, heard = agent.stream("s"), []

        def send():
            try:
                s.send(np.zeros(1 << 22))
            except cohort.RPCError as e:
                heard.append(e.kind)

        sender = threading.Thread(target=send)
        sender.start()
        while not agent._conn.sending.locked():
            time.sleep(0.001)
        agent.close()
        sender.join(20)
        self.assertIn(heard, [["closed"], ["connection lost"]])

    @unittest.skipUnless(hasattr(signal, "SIGALRM"), "wants a signal that interrupts")
    def test_interrupted(self):
        class Interrupt(BaseException):
            pass

        def interrupt(*_):
            raise Interrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        agent, caller = self.deaf(), threading.main_thread().ident

        def signals():
            while not agent._conn.sending.locked():
                time.sleep(0.001)
            time.sleep(0.2)  # the frame is half written
            signal.pthread_kill(caller, signal.SIGALRM)

        sender = threading.Thread(target=signals)
        sender.start()
        with self.assertRaises(Interrupt):
            agent.call("m", np.zeros(1 << 22))
        sender.join()
        with self.assertRaisesRegex(cohort.RPCError, "connection lost"):  # not half a frame, and the next one behind it
            agent.call("m")


if __name__ == "__main__":
    unittest.main()
