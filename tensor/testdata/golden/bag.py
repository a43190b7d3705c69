# SPDX-License-Identifier: Apache-2.0
import torch
import torch.nn.functional as F
from golden import case, write

ids = torch.tensor([3, 1, 3, 0, 2, 3, 1])
offsets = torch.tensor([0, 2, 2, 6])
square = torch.tensor([[4, 1, 4], [0, 2, 2]])


def bag(name, *shapes, ids=ids, offsets=offsets, **options):
    case(name, lambda w, *s: F.embedding_bag(ids, w, offsets, per_sample_weights=s[0] if s else None, **options), *shapes)


bag("bag mean", (4, 3), mode="mean")
bag("bag sum", (4, 3), mode="sum")
bag("bag max", (4, 3), mode="max")
bag("bag weighted", (4, 3), (7,), mode="sum")
bag("bag weighted padded", (4, 3), (7,), mode="sum", padding_idx=1)
bag("bag mean padded", (4, 3), mode="mean", padding_idx=1)
bag("bag max padded", (4, 3), mode="max", padding_idx=1)
bag("bag last offset", (4, 3), offsets=torch.tensor([0, 2, 2, 6, 7]), mode="sum", include_last_offset=True)
bag("bag of rows", (5, 2), ids=square, offsets=None, mode="mean")
bag("bag of rows weighted", (5, 2), (2, 3), ids=square, offsets=None, mode="sum")
case("embedding padded", lambda w: F.embedding(square, w, padding_idx=2), (5, 2))
write()
