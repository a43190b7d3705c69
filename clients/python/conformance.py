#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plays a conformance script against an agent: conformance.py ADDRESS SCRIPT [--tensors torch]

The script is rpc/testdata/conformance.json, the agent that of TestConformance
in package rpc, which runs this program. The token is that of COHORT_TOKEN.
"""

import argparse
import array
import datetime
import json
import sys

import numpy as np

import cohort

_CODES = {"int64": "q", "int32": "i", "float32": "f", "float64": "d"}


def from_script(v, kind):
    """Makes a value that is sent of one of the script."""
    if isinstance(v, list):
        return [from_script(x, kind) for x in v]
    if not isinstance(v, dict):
        return v
    if "$tensor" in v:
        a = np.array(v["data"], dtype=v["$tensor"]).reshape(v["shape"])
        if kind == "torch":
            import torch
            return torch.from_numpy(a)
        return a
    if "$bytes" in v:
        return bytes.fromhex(v["$bytes"])
    if "$time" in v:
        return datetime.datetime.fromisoformat(v["$time"].replace("Z", "+00:00"))
    if "$numbers" in v:
        return array.array(_CODES[v["$numbers"]], v["data"])
    return {k: from_script(x, kind) for k, x in v.items()}


def to_script(v):
    """Makes a value of the script of one that has come."""
    if isinstance(v, (list, tuple)):
        return [to_script(x) for x in v]
    if isinstance(v, dict):
        return {k: to_script(x) for k, x in v.items()}
    if isinstance(v, bytes):
        return {"$bytes": v.hex()}
    if isinstance(v, datetime.datetime):
        return {"$time": v.isoformat().replace("+00:00", "Z")}
    if isinstance(v, array.array):
        return {"$numbers": next(k for k, c in _CODES.items() if c == v.typecode), "data": v.tolist()}
    if type(v).__module__ == "torch":
        v = v.numpy()
    if isinstance(v, np.ndarray):
        data = v.reshape(-1)
        return {"$tensor": v.dtype.name, "shape": list(v.shape), "data": [int(x) for x in data] if v.dtype.kind in "biu" else data.tolist()}
    return v


def same(a, b):
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def play(agent, case, kind):
    """Returns what is wrong, None if nothing."""
    out, got, error = None, [], None
    try:
        if "send" in case:
            with agent.stream(case["method"]) as s:
                try:
                    for v in case["send"]:
                        s.send(v, timeout=10)
                    s.close_send()
                except cohort.RPCError:
                    pass  # the agent has ended it: recv says why
                while True:
                    try:
                        got.append(to_script(s.recv(timeout=10)))
                    except EOFError:
                        break
        else:
            out = to_script(agent.call(case["method"], from_script(case["in"], kind), timeout=case.get("timeout", 10)))
    except cohort.RPCError as e:
        error = e
    if error is not None and "error" not in case:
        return "failed: %s" % error
    if "error" in case:
        if error is None:
            return "did not fail, and gave %r" % (out,)
        if error.kind != case["error"] or case.get("says", "") not in error.message or case.get("code", error.code) != error.code:
            return "the error is %s (code %r)" % (error, error.code)
    elif "out" in case and not same(out, case["out"]):
        return "gave %r, want %r" % (out, case["out"])
    if not same(got, case.get("recv", [])):
        return "the stream gave %r, want %r" % (got, case["recv"])
    return None


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("address")
    p.add_argument("script")
    p.add_argument("--tensors", default="numpy", choices=["numpy", "torch"])
    p.add_argument("--tls", action="store_true")
    o = p.parse_args()
    with open(o.script, encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    wrong = 0
    with cohort.connect(o.address, tensors=o.tensors, tls=o.tls) as agent:
        for case in cases:
            problem = play(agent, case, o.tensors)
            if problem:
                wrong += 1
                print("%s: %s" % (case["name"], problem))
    print("%d of %d cases as they should be" % (len(cases) - wrong, len(cases)))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
