# SPDX-License-Identifier: Apache-2.0
import torch
import torch.nn.functional as F
from golden import case, write


def attention(q, k, v, causal=False, mask=None, scale=None):
    """Of [batch, time, heads, dim]; a causal query sees the keys up to its own place, counted from the end."""
    if causal:
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        mask = seen if mask is None else mask.masked_fill(~seen, float("-inf"))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True).transpose(1, 2)


def bounded(q, k, v, mask, cap):
    """Causal attention whose scores are bounded before the mask is added."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), k.repeat_interleave(group, 2).transpose(1, 2), v.repeat_interleave(group, 2).transpose(1, 2)
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    scores = cap * torch.tanh(q @ k.transpose(2, 3) / q.shape[3] ** 0.5 / cap) + mask
    return (scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v).transpose(1, 2)


SEEN = torch.tensor([1, 0, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0], dtype=torch.bool).reshape(2, 1, 2, 5)

case("attention", attention, (2, 3, 2, 4), (2, 5, 2, 4), (2, 5, 2, 4))
case("attention causal", lambda q, k, v: attention(q, k, v, True), (1, 3, 2, 4), (1, 4, 2, 4), (1, 4, 2, 4))
case("attention grouped", lambda q, k, v: attention(q, k, v, True, scale=0.7), (1, 3, 4, 5), (1, 4, 2, 5), (1, 4, 2, 5))
case("attention soft cap", lambda q, k, v, m: bounded(q, k, v, m, 0.8), (1, 3, 4, 5), (1, 4, 2, 5), (1, 4, 2, 5), (4, 3, 4))
case("attention bool mask", lambda q, k, v: attention(q, k, v, mask=SEEN), (2, 2, 2, 4), (2, 5, 1, 4), (2, 5, 1, 4))
BLIND = torch.tensor([[False, True, True], [True, False, True], [False, True, True]])
case("attention blind query", lambda q, k, v, m: attention(q, k, v, True, m.where(BLIND, -torch.inf)),
     (1, 3, 2, 4), (1, 3, 2, 4), (1, 3, 2, 4), (2, 3, 3))
case("attention float mask", lambda q, k, v, m: attention(q, k, v, True, m.expand(2, 3, 4)),
     (2, 3, 2, 4), (2, 4, 2, 4), (2, 4, 2, 4), (2, 1, 4))
case("attention mask by query", lambda q, k, v, m: attention(q, k, v, mask=m.expand(3, 3)),
     (1, 3, 2, 4), (1, 3, 1, 4), (1, 3, 1, 4), (3, 1))
case("self attention", lambda x: attention(*x.reshape(2, 4, 3, 2, 3).unbind(2), True).reshape(2, 4, 6), (2, 4, 18))
case("self attention mask", lambda x, m: attention(*x.reshape(2, 4, 3, 2, 3).unbind(2), mask=m.expand(2, 4, 4), scale=0.5).reshape(2, 4, 6),
     (2, 4, 18), (2, 1, 4))
write()
