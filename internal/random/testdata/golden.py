# SPDX-License-Identifier: Apache-2.0
# Writes golden.json, the draws of PyTorch's CPU generator that the tests
# compare with. Needs a PyTorch 2.x on a CPU with AVX2 or AVX-512:
#
#     python3 golden.py > golden.json
import hashlib
import json
import math
import struct

import torch


def bits(t):
    return [struct.unpack("<I", struct.pack("<f", v))[0] for v in t.flatten().tolist()]


def digest(t):
    """SHA-256 of the elements as little-endian bytes."""
    return hashlib.sha256(t.contiguous().numpy().tobytes()).hexdigest()


def gen(seed):
    g = torch.Generator()
    g.manual_seed(seed)
    return g


out = {
    "torch": torch.__version__,
    "capability": torch.backends.cpu.get_cpu_capability(),
    "seeds": [],
    "perms": [],
    "uniforms": [],
}
for seed in [0, 1, 7, 42, -1, -(2**63), 2**31, 2**32 + 5, 2**63 - 1, 123456789012345]:
    e = {"seed": str(seed)}
    e["rand_bits"] = bits(torch.rand(8, generator=gen(seed)))
    e["rand_sha256_2000"] = digest(torch.rand(2000, generator=gen(seed)))
    e["rand64"] = [v.hex() for v in torch.rand(4, generator=gen(seed), dtype=torch.float64).tolist()]
    g = gen(seed)
    e["randint_1000"] = torch.randint(0, 1000, (8,), generator=g).tolist()
    e["randint_wide"] = torch.randint(0, 10**12, (4,), generator=gen(seed)).tolist()
    e["randint_2_28"] = torch.randint(0, 2**28, (4,), generator=gen(seed)).tolist()
    e["randint_2_28_less"] = torch.randint(0, 2**28 - 1, (4,), generator=gen(seed)).tolist()
    g = gen(seed)
    e["random_int64"] = [int(torch.empty((), dtype=torch.int64).random_(generator=g)) for _ in range(3)]
    # A mixture, so that the position in the stream counts as well.
    g = gen(seed)
    torch.rand(623, generator=g)
    mixed = [torch.randperm(5, generator=g).tolist()]
    mixed.append(bits(torch.rand(3, generator=g)))
    mixed.append(torch.randperm(7, generator=g).tolist())
    e["mixed"] = mixed
    out["seeds"].append(e)
for seed, n in [(0, 0), (0, 1), (0, 2), (3, 10), (3, 7), (7, 100), (2**40 + 9, 1000), (-5, 100_003), (11, 1_000_000)]:
    p = torch.randperm(n, generator=gen(seed))
    out["perms"].append({"seed": str(seed), "n": n, "head": p[:16].tolist(), "sha256": digest(p)})
for seed, n, lo, hi in [
    (0, 8, -1.0, 1.0), (1, 1000, -0.0625, 0.0625), (2, 4099, -1 / math.sqrt(768), 1 / math.sqrt(768)),
    (3, 100_000, -0.1, 0.1), (4, 100_000, 0.1, 0.3), (5, 100_000, -3.7, 1000.1), (6, 100_000, 1e-30, 1.0), (7, 17, 5.0, 5.0),
]:
    t = torch.empty(n).uniform_(lo, hi, generator=gen(seed))
    lo32, hi32 = (bits(torch.tensor([v]))[0] for v in (lo, hi))
    out["uniforms"].append({"seed": str(seed), "n": n, "lo_bits": lo32, "hi_bits": hi32, "head": bits(t[:8]), "sha256": digest(t)})
print(json.dumps(out, indent=1))
