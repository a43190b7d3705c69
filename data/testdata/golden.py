# SPDX-License-Identifier: Apache-2.0
# Writes golden.json: what torch.utils.data.DistributedSampler gives every rank
# for 1,000 random datasets and the corner cases, as one SHA-256 a case over
# the ranks' indices, and in full for the first few.
#
#     python3 golden.py > golden.json
#
# With a number, the random cases are others: go test ./data -run Samplers -pytorch python3
import hashlib
import json
import random
import struct
import sys

import torch
from torch.utils.data import DistributedSampler, RandomSampler

r = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 17)
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

args = [(5, False, 5, 1, 0), (5, False, 13, 1, 2), (5, True, 40, 1, 0), (1, True, 3, 1, 0)]
for _ in range(1000):
    n = r.choice([r.randrange(1, 20), r.randrange(1, 200), r.randrange(1, 3000)])
    num = n if r.random() < 0.5 else r.randrange(1, 3 * n + 1)
    args.append((n, r.random() < 0.5, num, r.randrange(-(2**40), 2**40), r.randrange(50)))
randoms = []
for n, replacement, num, seed, epoch in args:
    g = torch.Generator()
    g.manual_seed(seed + epoch)
    order = list(RandomSampler(range(n), replacement, num, g))
    c = {"len": n, "replacement": replacement, "num_samples": num, "seed": seed, "epoch": epoch}
    c["sha256"] = hashlib.sha256(b"".join(struct.pack("<q", i) for i in order)).hexdigest()
    if len(randoms) < 20:
        c["order"] = order
    randoms.append(c)
print(json.dumps({"torch": torch.__version__, "cases": cases, "random": randoms}, separators=(",", ":")))
