# SPDX-License-Identifier: Apache-2.0
"""A rank of PyTorch's: it sums the ranks' numbers with whoever else is in the job. The
rank of --fail fails in the first attempt, once all have met."""
import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
t = torch.full((3,), float(dist.get_rank()))
dist.all_reduce(t)
dist.barrier()
print("sum %d of %d, agent %s" % (t[0], dist.get_world_size(), os.environ["TORCHELASTIC_USE_AGENT_STORE"]))
dist.destroy_process_group()
if "--fail" in sys.argv and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    sys.exit(3)
