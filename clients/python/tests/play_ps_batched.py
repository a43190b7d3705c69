# SPDX-License-Identifier: Apache-2.0
"""Two workers with batched updates, and rows that are asked for ahead: TestPythonBatched of
rpc/ps starts it."""
import json
import sys
import threading

import numpy as np

import cohort.ps


def main():
    told = json.load(sys.stdin)
    schemas = [{"name": "t", "width": 3, "wire": told["wire"], "init": {"kind": "uniform", "scale": 0.5, "seed": 1}, "optimizer": {"kind": "sgd", "lr": 1}},
               {"name": "other", "width": 2, "optimizer": {"kind": "sgd", "lr": 1}}]
    keys = np.arange(40)
    got, failed = [None, None], []

    def work(rank):
        try:
            with cohort.ps.connect(told["addresses"], tables=schemas, worker=rank, workers=2, consistency="asynchronous,batch:2:mean", timeout=30) as c:
                first = c.pull({"t": keys})["t"]
                # Keys repeat, and have no order. Worker 1 has fewer of them.
                own = np.concatenate([keys[::-1], keys[:3]]) if rank == 0 else keys[20:]
                new = c.update({"t": (own, np.full((len(own), 3), 2.0 + 2 * rank))})["t"]
                assert new.shape == (len(own), 3), new.shape
                c.update({})  # no gradients; the other's batch waits for it all the same
                later = c.prefetch({"t": keys, "other": [7]}, step=c.step_number)
                got[rank] = first, own, new, later.result()["t"]
        except BaseException as e:
            failed.append(e)
            raise
    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        sys.exit(1)
    # Worker 0 has pushed 2 to all keys and twice to the first three, worker 1 has pushed 4 to the last 20.
    mean = np.where(keys < 3, 4.0, 2.0) / 2 + np.where(keys >= 20, 4.0, 0.0) / 2
    first, _, _, _ = got[0]
    want = first - mean[:, None]
    for rank in range(2):
        _, own, new, later = got[rank]
        np.testing.assert_allclose(new, want[own], rtol=0, atol=0.02)
        np.testing.assert_allclose(later, want, rtol=0, atol=0.02)
    print("batches of two workers and rows asked for ahead are as they should be on %d servers" % len(told["addresses"]))


main()
