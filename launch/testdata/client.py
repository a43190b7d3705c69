# SPDX-License-Identifier: Apache-2.0
"""A rank that is a client of the launcher's store, and serves none: torchrun has one for
every number of ranks."""
import os
from datetime import timedelta

from torch.distributed import TCPStore

store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=20))
store.set("key", "1")
print(f"the store has {store.get('key')} for {os.environ['WORLD_SIZE']}, agent {os.environ['TORCHELASTIC_USE_AGENT_STORE']}")
