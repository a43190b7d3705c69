# SPDX-License-Identifier: Apache-2.0
import datetime
import sys
from torch.distributed import TCPStore

host, port = sys.argv[1].split(":")
store = TCPStore(host, int(port), is_master=False, timeout=datetime.timedelta(seconds=20))
store.set("greeting", "hello from Python")
print("Go says:", store.get("answer").decode())
print("visits:", store.add("visits", 1))
