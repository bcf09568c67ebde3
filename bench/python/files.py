# What torch does with files, for bench files. A line is WAY;BYTES;COUNT, and the folder is the argument; the answer is one line of JSON.
import json
import os
import sys
import time

import torch

torch.set_num_threads(1)
path = os.path.join(sys.argv[1], "torch.pt")
ways = {"torch.save": True, "torch.load": False, "torch.save, fsync, rename": True}


def save(t, sync):
    if not sync:
        torch.save(t, path)
        return
    with open(path + ".tmp", "wb") as f:
        torch.save(t, f)
        f.flush()
        os.fsync(f.fileno())
    os.rename(path + ".tmp", path)


for line in sys.stdin:
    way, n, count = line.strip().split(";")
    t = torch.ones(int(n) // 4)
    save(t, False)
    took = []
    for i in range(-1, int(count)):
        if ways[way]:
            os.remove(path)
        began = time.perf_counter()
        if ways[way]:
            save(t, "fsync" in way)
        else:
            torch.load(path)
        if i >= 0:
            took.append((time.perf_counter() - began) * 1e6)
    os.remove(path)
    print(json.dumps({"Took": took}), flush=True)
