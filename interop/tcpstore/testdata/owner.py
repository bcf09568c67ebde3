# Sets a key, and waits until it is killed.
import sys
import time

import torch.distributed as dist

store = dist.PrefixStore("nixl/agents", dist.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False))
store.set("owner", "1")
time.sleep(600)
