# SPDX-License-Identifier: Apache-2.0
import torch
import torch.nn.functional as F
from golden import case, write


def attention(q, k, v, causal=False):
    """Of [batch, time, heads, dim]; a causal query sees the keys up to its own place, counted from the end."""
    mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    if causal:
        mask = mask.tril(k.shape[1] - q.shape[1])
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


case("attention", attention, (2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 4))
case("attention causal", lambda q, k, v: attention(q, k, v, True), (1, 3, 2, 4), (1, 4, 2, 4), (1, 4, 2, 4))
case("self attention", lambda x: attention(*x.reshape(2, 4, 3, 2, 3).unbind(2), True).reshape(2, 4, 6), (2, 4, 18))
write()
