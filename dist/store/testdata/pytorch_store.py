# SPDX-License-Identifier: Apache-2.0
"""One process of PyTorch's for the live tests of package store: it does what lines of
JSON on its standard input say, and answers each with one on its standard output."""

import datetime
import json
import os
import sys
import threading

import torch.distributed as dist
import torch

PATIENCE = datetime.timedelta(seconds=20)
servers = []


def connect(port, **options):
    return dist.TCPStore("127.0.0.1", port, timeout=PATIENCE, **options)


def versions(_):
    """What this PyTorch has."""
    modern = hasattr(dist.TCPStore, "multi_get")
    libuv = False
    if "use_libuv" in (dist.TCPStore.__init__.__doc__ or ""):
        try:
            dist.TCPStore("127.0.0.1", 0, 1, True, PATIENCE, use_libuv=True)
            libuv = True
        except Exception:
            os.environ["USE_LIBUV"] = "0"  # a build without it says so when it is asked for
    return {
        "version": torch.__version__,
        "generation": 2 if modern else 1,
        "libuv": libuv,
        "queues": hasattr(dist.TCPStore, "queue_push"),
        "lists": hasattr(dist.TCPStore, "list_keys"),
    }


def serve(c):
    """Serves an empty store, on a port that the answer names."""
    s = connect(0, is_master=True, wait_for_workers=False, **({"use_libuv": c["libuv"]} if c["modern"] else {}))
    servers.append(s)
    return {"port": s.port}


def close(_):
    servers.clear()
    return {}


def expect(got, want, what):
    if got != want:
        raise AssertionError("%s: %r, want %r" % (what, got, want))


def raises(what, call):
    try:
        call()
    except Exception as e:
        return str(e)
    raise AssertionError("%s: nothing was raised" % what)


def client(c):
    """Uses every operation that this PyTorch has, beside a Go process that has set
    "from go" and reads what is left."""
    s = connect(c["port"], world_size=c["world"], is_master=False)
    modern = hasattr(s, "multi_get")
    expect(s.get("from go"), b"value of go", "get of a key of Go's")
    s.set("text", "abc")
    s.set("text", "abcd")
    expect(s.get("text"), b"abcd", "get")
    s.set("", "an empty key")
    expect(s.get(""), b"an empty key", "get of the empty key")
    s.set("empty", "")
    expect(s.get("empty"), b"", "an empty value")
    s.set("long", "x" * 300000)
    expect(len(s.get("long")), 300000, "a long value")
    expect(s.add("n", 5), 5, "add")
    expect(s.add("n", -7), -2, "add")
    expect(s.get("n"), b"-2", "a counter as text")
    expect(s.compare_set("cas", "", "first"), b"first", "compare_set of a new key")
    expect(s.compare_set("cas", "first", "second"), b"second", "compare_set")
    expect(s.compare_set("cas", "first", "third"), b"second", "compare_set of another value")
    expect(s.compare_set("nobody", "old", "new"), b"old", "compare_set of no key")
    expect(s.delete_key("text"), True, "delete_key")
    expect(s.delete_key("text"), False, "delete_key again")
    s.wait(["n", "cas", "n"])
    before = s.num_keys()
    s.set("one more", "1")
    expect(s.num_keys(), before + 1, "num_keys")
    later = threading.Timer(0.05, lambda: connect(c["port"]).set("later", "came"))
    later.start()
    expect(s.get("later"), b"came", "get that waits")
    later.join()
    prefixed = dist.PrefixStore("pre", s)
    prefixed.set("k", "v")
    expect(s.get("pre/k"), b"v", "PrefixStore")
    if not modern:
        raises("a wait that gives up", lambda: connect(c["port"]).wait(["never"], datetime.timedelta(milliseconds=100)))
        return {"keys": s.num_keys()}
    message = raises("a wait that gives up", lambda: s.wait(["never"], datetime.timedelta(milliseconds=50)))
    expect("timeout" in message.lower(), True, "what the wait says: " + message)
    expect(s.get("n"), b"-2", "get after a wait that gave up")
    if hasattr(s, "check"):  # which 2.2 has not
        expect(s.check(["n", "cas"]), True, "check")
        expect(s.check(["n", "never"]), False, "check of a key that is missing")
    s.append("log", "ab")
    s.append("log", "cd")
    expect(s.get("log"), b"abcd", "append")
    s.multi_set(["m1", "m2", "m1"], ["1", "2", "3"])
    expect(s.multi_get(["m2", "m1"]), [b"2", b"3"], "multi_get")
    if hasattr(s, "queue_push"):
        s.queue_push("q", "1")
        s.queue_push("q", "2")
        expect(s.queue_len("q"), 2, "queue_len")
        expect(s.queue_pop("q"), b"1", "queue_pop")
        expect(s.queue_pop("q", False), b"2", "queue_pop")
        expect(s.queue_len("q"), 0, "queue_len")
        raises("queue_pop of nothing", lambda: s.queue_pop("q", False))
        later = threading.Timer(0.05, lambda: connect(c["port"]).queue_push("q", "late"))
        later.start()
        expect(s.queue_pop("q"), b"late", "queue_pop that waits")
        later.join()
        s.set_timeout(datetime.timedelta(milliseconds=50))
        raises("queue_pop that gives up", lambda: s.queue_pop("q"))
        s.set_timeout(PATIENCE)
    if hasattr(s, "list_keys"):
        keys = s.list_keys()
        expect("m1" in keys or "/m1" in keys, True, "list_keys: %r" % keys)
    if hasattr(s, "barrier"):
        other = connect(c["port"])
        t = threading.Thread(target=lambda: other.barrier("together", 2))
        t.start()
        s.barrier("together", 2)
        t.join()
        raises("a barrier that gives up", lambda: s.barrier("alone", 2, datetime.timedelta(milliseconds=50)))
        expect(s.get("n"), b"-2", "get after a barrier that gave up")
    if hasattr(s, "clone"):
        expect(s.clone().get("n"), b"-2", "a clone's get")
    return {"keys": s.num_keys()}


def host(c):
    """Serves a store to a job and waits for all to join."""
    s = dist.TCPStore("127.0.0.1", c["port"], c["world"], True, PATIENCE)
    servers.append(s)
    return {"port": s.port}


def file(c):
    """Uses a FileStore that a Go process uses too."""
    s = dist.FileStore(c["path"], c["world"])
    expect(s.get("from go"), b"value of go", "get of a key of Go's")
    s.set("text", "abc")
    s.set("text", "abcd")
    expect(s.get("text"), b"abcd", "get")
    expect(s.add("n", 5), 5, "add")
    expect(s.add("n", -7), -2, "add")
    expect(s.compare_set("cas", "", "first"), b"first", "compare_set of a new key")
    expect(s.compare_set("cas", "first", "second"), b"second", "compare_set")
    s.set("gone", "1")
    s.delete_key("gone")
    s.wait(["n", "cas"])
    s.set("python done", "1")
    expect(s.get("go done"), b"1", "get of what Go set last")
    return {"keys": s.num_keys()}


for line in sys.stdin:
    command = json.loads(line)
    try:
        answer = globals()[command["do"]](command)
    except Exception as e:
        answer = {"error": "%s: %s" % (type(e).__name__, e)}
    print(json.dumps(answer), flush=True)
