# SPDX-License-Identifier: Apache-2.0
"""Writes dlrm.safetensors: weights, a batch, and what a DLRM as Naumov et al.
describe it computes in PyTorch: logits, loss, the gradient of every parameter
and the losses of twenty steps of SGD.

    python dlrm.py       (needs torch, safetensors)
"""
import pathlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

TABLES, WIDTH, BATCH = (11, 7, 30), 8, 6


class DLRM(nn.Module):
    def __init__(self):
        super().__init__()
        self.bot_l = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, WIDTH), nn.ReLU())
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(n, WIDTH, mode="sum") for n in TABLES)
        pairs = (len(TABLES) + 1) * len(TABLES) // 2
        self.top_l = nn.Sequential(nn.Linear(WIDTH + pairs, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, dense, bags):
        x = self.bot_l(dense)
        all = torch.stack([x] + [e(ids, offsets) for e, (ids, offsets) in zip(self.emb_l, bags)], 1)
        i, j = torch.tril_indices(all.shape[1], all.shape[1], -1)
        return self.top_l(torch.cat([x, (all @ all.transpose(1, 2))[:, i, j]], 1))


torch.manual_seed(11)
model = DLRM()
with torch.no_grad():
    for p in model.parameters():
        p.copy_(torch.randn_like(p) * 0.4)
dense = torch.randn(BATCH, 5)
labels = torch.randint(0, 2, (BATCH, 1)).float()
bags = []
for n in TABLES:
    sizes = torch.randint(0, 4, (BATCH,))  # an empty bag is a vector of zeros
    bags.append((torch.randint(0, n, (int(sizes.sum()),)), torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)[:-1]])))
out = {"dense": dense, "labels": labels} | {"weight." + n: p.detach().clone() for n, p in model.named_parameters()}
for i, (ids, offsets) in enumerate(bags):
    out |= {f"ids{i}": ids, f"offsets{i}": offsets}
logits = model(dense, bags)
loss = F.binary_cross_entropy_with_logits(logits, labels)
loss.backward()
out |= {"logits": logits.detach(), "loss": loss.detach().reshape(1)}
out |= {"grad." + n: p.grad.clone() for n, p in model.named_parameters()}
opt = torch.optim.SGD(model.parameters(), lr=0.02)
losses = []
for _ in range(20):
    opt.zero_grad()
    now = F.binary_cross_entropy_with_logits(model(dense, bags), labels)
    losses.append(now.item())
    now.backward()
    opt.step()
out["losses"] = torch.tensor(losses)
path = pathlib.Path(__file__).with_suffix(".safetensors")
save_file({k: v.contiguous() for k, v in out.items()}, path)
print(path, f"losses {losses[0]:.4f} … {losses[-1]:.4f}")
