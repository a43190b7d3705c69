# SPDX-License-Identifier: Apache-2.0
"""Plays against Go's parameter servers: TestPythonClient of rpc/ps starts it."""
import json
import sys

import numpy as np

import cohort
import cohort.ps


def main():
    told = json.load(sys.stdin)
    keys = np.array(told["keys"], np.int64)
    for r in told["routing"]:
        of = cohort.ps.spread(r["Servers"])[cohort.ps.partition_of(keys)]
        assert of.tolist() == r["Of"], "the routing over %d servers" % r["Servers"]
    with cohort.ps.connect(told["addresses"]) as c:
        got = c.pull({table: keys for table in told["first"]})
        for table, rows in told["first"].items():
            # Rows that are sent as int8 and a scale are rounded on the wire.
            np.testing.assert_allclose(got[table], np.array(rows, np.float32), rtol=0, atol=0 if table == "float32" else 0.02, err_msg=table)
        assert c.step_number == 0
        c.push({"dense": ([7, 7], np.ones((2, 2)))})
        c.push({"dense": ([49], np.full((1, 2), 0.5))})
        rows = c.pull({"dense": [49, 7, 0, 7]})["dense"]
        assert rows.tolist() == [[-0.5] * 2, [-2.0] * 2, [0.0] * 2, [-2.0] * 2], rows
        for s in c._servers:  # the next requests go on new connections
            s.agent._conn.sock.shutdown(2)
        c.push({"dense": ([7], np.zeros((1, 2)))})
        assert c.pull({"dense": [7]})["dense"].tolist() == [[-2.0] * 2]
        for want, call in {
            "nan": lambda: c.push({"dense": ([3], np.full((1, 2), np.nan))}),
            "no table": lambda: c.pull({"none": [1]}),
            "0 to 49": lambda: c.pull({"dense": [50]}),
            "want [1, 2]": lambda: c.push({"dense": ([3], np.ones((1, 3)))}),
        }.items():
            try:
                call()
            except (cohort.RPCError, KeyError, ValueError) as e:
                assert want.lower() in str(e).lower(), "%s, want %s" % (e, want)
            else:
                raise AssertionError("no error, want %s" % want)
    try:
        cohort.ps.connect(told["addresses"], job="another", tables=[{"name": "dense", "width": 3, "rows": 50, "optimizer": {"kind": "sgd", "lr": 1}}], timeout=5)
    except cohort.RPCError as e:
        assert "dense" in str(e), e
    else:
        raise AssertionError("another schema is accepted")
    print("routing, rows and errors are as they should be on %d servers" % len(told["addresses"]))


main()
