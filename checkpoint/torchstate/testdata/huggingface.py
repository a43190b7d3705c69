# SPDX-License-Identifier: Apache-2.0
"""Reads a checkpoint of Cohort with PyTorch's HuggingFaceStorageReader into plain tensors, and compares them with those of a
file of torch.save. Prints how many were compared.  python huggingface.py FOLDER FILE"""
import sys
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader

want = torch.load(sys.argv[2], weights_only=True)
got = {name: torch.full_like(t, -1) for name, t in want.items()}
dcp.load(got, storage_reader=HuggingFaceStorageReader(path=sys.argv[1]), no_dist=True)
for name, t in want.items():
    assert torch.equal(got[name], t), (name, got[name], t)
print(len(want))
