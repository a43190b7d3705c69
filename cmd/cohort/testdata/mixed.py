# SPDX-License-Identifier: Apache-2.0
"""A rank of PyTorch's that adds numbers with all others until there is a file "stop" in
the directory given. It says when it has met the others, and ends with the store."""
import os
import sys
import time

import torch
import torch.distributed as dist

where = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
met = False
while True:
    t = torch.tensor([1.0, float(rank == 0 and os.path.exists(os.path.join(where, "stop")))])
    dist.all_reduce(t)
    if not met:
        met = True
        print("python %d: met %d of %d, agent %s, attempt %s" % (rank, t[0], world, os.environ["TORCHELASTIC_USE_AGENT_STORE"], os.environ["TORCHELASTIC_RESTART_COUNT"]))
    if t[1] > 0:
        break
    time.sleep(0.02)
dist.barrier()
if os.environ["GROUP_RANK"] == str(int(os.environ["GROUP_WORLD_SIZE"]) - 1):  # those of the first node have ended before this one
    while not os.path.exists(os.path.join(where, "late")):
        time.sleep(0.02)
    store = dist.distributed_c10d._get_default_store()
    store.set("late", "yes")
    print("late: %s" % store.get("late").decode())
dist.destroy_process_group()
