# SPDX-License-Identifier: Apache-2.0
"""Times steps of the default recommender in PyTorch and in `cohort train rec`.

    go build -o cohort ./cmd/cohort
    taskset -c 0 python tools/compare_rec.py ./cohort --pairs 5

The model is the same (a DLRM with four tables of 502 rows and width 8, sparse
gradients, Adagrad), on one rank and one thread; the two take turns. PyTorch's
batches are slices of tensors in memory; Cohort's steps include drawing the order,
collating rows, agreeing on the loss and the order log. It needs PyTorch.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
import warnings

import torch

ROWS, WIDTH, TABLES = 502, 8, 4


class DLRM(torch.nn.Module):
    def __init__(self):
        super().__init__()
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        self.bottom = torch.nn.Sequential(linear(2, 16), relu(), linear(16, WIDTH), relu())
        self.tables = torch.nn.ModuleList(torch.nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True) for _ in range(TABLES))
        pairs = [(i, j) for i in range(TABLES + 1) for j in range(i)]
        self.first, self.second = (torch.tensor(side) for side in zip(*pairs))
        self.top = torch.nn.Sequential(linear(WIDTH + len(pairs), 32), relu(), linear(32, 1))

    def forward(self, numbers, ids, offsets):
        dense = self.bottom(numbers)
        vectors = torch.stack([dense] + [table(i, offsets) for table, i in zip(self.tables, ids)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.first, self.second]
        return self.top(torch.cat([dense, products], 1)).squeeze(1)


def peer(batch, steps):
    """Returns the median time of a step in PyTorch, in seconds."""
    torch.manual_seed(1)
    model, batches = DLRM(), 64
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    numbers, labels = torch.randn(batches, batch, 2), torch.randint(0, 2, (batches, batch)).float()
    ids, offsets = torch.randint(0, ROWS, (batches, TABLES, batch)), torch.arange(batch)
    times = []
    for step in range(steps):
        began, i = time.perf_counter(), step % batches
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(numbers[i], list(ids[i]), offsets), labels[i])
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    return statistics.median(times[steps // 10 :])


def own(cohort, batch):
    """Returns the median time of a step in Cohort, in seconds."""
    with tempfile.TemporaryDirectory() as out:
        command = [cohort, "train", "rec", "--ranks", "1", "--batch", str(batch), "--epochs", "2", "--eval-every", "0",
                   "--save-every", "0", "--workers", "0", "--json", "--out", out]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rates = [line["rows_per_s"] for line in map(json.loads, lines) if "rows_per_s" in line]
    return batch / statistics.median(rates[len(rates) // 10 :])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("cohort", help="the binary")
    p.add_argument("--pairs", type=int, default=5)
    p.add_argument("--batch", type=int, default=512)
    args = p.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    ratios = []
    for _ in range(args.pairs):
        theirs, ours = peer(args.batch, 500), own(args.cohort, args.batch)
        ratios.append(ours / theirs)
        print(f"PyTorch {torch.__version__} {theirs * 1e6:.0f} us a step, Cohort {ours * 1e6:.0f} us, ratio {ratios[-1]:.2f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


main()
