# SPDX-License-Identifier: Apache-2.0
"""PyTorch's ranks of `go run ./examples/pytorch-mixed feed`. They train on batches that the last rank sends."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, feeder = dist.get_rank(), dist.get_world_size() - 1
trainers = dist.new_group(list(range(feeder)))
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
model = nn.parallel.DistributedDataParallel(net, process_group=trainers)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
plan = torch.zeros(2, dtype=torch.int64)
dist.recv(plan, src=feeder)
steps, batch = plan.tolist()
x, y = torch.empty(batch, 1, 28, 28), torch.empty(batch, dtype=torch.int64)
losses = []
for _ in range(steps):
    dist.recv(x, src=feeder)
    dist.recv(y, src=feeder)
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
if rank == 0:
    dist.send(torch.tensor([losses[0], sum(losses[-10:]) / 10]), dst=feeder)
