# SPDX-License-Identifier: Apache-2.0
"""Trains a small DLRM with tables on servers and one with its own tables, side by side:
TestPyTorchTrains of rpc/ps starts it."""
import json
import sys

import numpy as np
import torch

import cohort.ps

ROWS, WIDTH, TABLES, BATCH, STEPS, LR = 1000, 4, 3, 32, 25, 0.1


class DLRM(torch.nn.Module):
    def __init__(self, tables):
        super().__init__()
        self.tables = torch.nn.ModuleList(tables)
        self.bottom = torch.nn.Sequential(torch.nn.Linear(2, WIDTH), torch.nn.ReLU())
        self.top = torch.nn.Sequential(torch.nn.Linear(WIDTH + 6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

    def forward(self, numbers, ids, offsets):
        dense = self.bottom(numbers)
        v = torch.stack([dense] + [t(i, offsets) for t, i in zip(self.tables, ids)], 1)
        i, j = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
        return self.top(torch.cat([dense, (v @ v.transpose(1, 2))[:, i, j]], 1)).squeeze(1)


def train(make, step, seed, ahead=lambda ids: None):
    torch.manual_seed(seed)
    model = DLRM(make())
    dense = torch.optim.SGD(model.parameters(), lr=LR)
    draw = np.random.default_rng(seed)
    batches = []
    for _ in range(STEPS):
        numbers = torch.from_numpy(draw.standard_normal((BATCH, 2)).astype(np.float32))
        batches.append((numbers, [torch.from_numpy(draw.integers(0, 50, 2 * BATCH)) for _ in range(TABLES)]))
    losses = []
    for n, (numbers, ids) in enumerate(batches):
        if n + 1 < STEPS:
            ahead(batches[n + 1][1])
        labels = torch.from_numpy((ids[0][::2].numpy() % 2).astype(np.float32))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(numbers, ids, torch.arange(0, 2 * BATCH, 2)), labels)
        dense.zero_grad()
        loss.backward()
        dense.step()
        step()
        losses.append(loss.item())
    return losses


def main():
    told = json.load(sys.stdin)
    schemas = [{"name": "t%d" % i, "width": WIDTH, "init": {"kind": "uniform", "scale": 0.5, "seed": 1}, "optimizer": {"kind": "sgd", "lr": LR}} for i in range(TABLES)]
    with cohort.ps.connect(told["addresses"], tables=schemas) as c:
        values = [torch.from_numpy(c.pull({"t%d" % i: np.arange(ROWS)})["t%d" % i]) for i in range(TABLES)]
        state = torch.get_rng_state()
        remote = train(lambda: [cohort.ps.EmbeddingBag(c, "t%d" % i) for i in range(TABLES)], c.step, 3)
        asked = []

        def ahead(ids):
            # The server answers when this step has been pushed: the rows lack nothing.
            asked.append(c.prefetch({"t%d" % i: x for i, x in enumerate(ids)}))
        with cohort.ps.connect(told["again"], tables=schemas) as c:
            torch.set_rng_state(state)
            prefetched = train(lambda: [cohort.ps.EmbeddingBag(c, "t%d" % i) for i in range(TABLES)], c.step, 3, ahead)
            assert len(asked) == STEPS - 1 and not any(c._ahead.values()), "rows were asked for and not taken"
        assert prefetched == remote, "rows that were asked for ahead give other losses"
        torch.set_rng_state(state)
        local = train(lambda: [torch.nn.EmbeddingBag.from_pretrained(v.clone(), freeze=False, mode="sum") for v in values], lambda: None, 3)
    np.testing.assert_allclose(remote, local, rtol=0, atol=2e-5)
    assert local[-1] < local[0], local
    print("loss %.6f on servers, %.6f in PyTorch, after %d steps" % (remote[-1], local[-1], STEPS))


main()
