# SPDX-License-Identifier: Apache-2.0
# Writes golden.json: what torch.utils.data.DistributedSampler gives every rank
# for 1,000 random datasets and the corner cases, as one SHA-256 a case over
# the ranks' indices, and in full for the first few.
#
#     python3 golden.py > golden.json
import hashlib
import json
import random
import struct

import torch
from torch.utils.data import DistributedSampler

r = random.Random(17)
args = [(10, 3, True, 3, False, 0), (10, 3, True, 3, True, 0), (2, 5, True, 3, False, 0), (7, 2, True, 3, True, 0), (1, 1, True, 0, False, 0), (8, 8, True, 1, True, 1), (3, 8, False, 0, False, 2)]
for _ in range(1000):
    n = r.choice([r.randrange(1, 20), r.randrange(1, 200), r.randrange(1, 3000)])
    w = r.randrange(1, 20)
    drop = r.random() < 0.5 and n >= w
    args.append((n, w, r.random() < 0.7, r.randrange(-(2**40), 2**40), drop, r.randrange(50)))
cases = []
for n, w, shuffle, seed, drop, epoch in args:
    h = hashlib.sha256()
    ranks = []
    for rank in range(w):
        s = DistributedSampler(range(n), w, rank, shuffle, seed, drop)
        s.set_epoch(epoch)
        ranks.append(list(s))
        assert len(s) == len(ranks[-1])
        h.update(b"".join(struct.pack("<q", i) for i in ranks[-1]))
    c = {"len": n, "replicas": w, "shuffle": shuffle, "seed": seed, "drop_last": drop, "epoch": epoch, "sha256": h.hexdigest()}
    if len(cases) < 20:
        c["ranks"] = ranks
    cases.append(c)
print(json.dumps({"torch": torch.__version__, "cases": cases}, separators=(",", ":")))
