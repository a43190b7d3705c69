# SPDX-License-Identifier: Apache-2.0
"""A rank of PyTorch's that makes all-reduces with whoever else is in the job. Rank 1 is
stopped after the second."""
import os
import signal

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for i in range(5):
    if i == 2 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.zeros(3))
