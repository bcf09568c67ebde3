# What torch does with files, for bench files. A line is WAY;BYTES;COUNT, and the folder is the argument; the answer is one line of JSON.
import json
import os
import sys
import time

import torch

torch.set_num_threads(1)
path = os.path.join(sys.argv[1], "torch.pt")


def save(t):
    with open(path + ".tmp", "wb") as f:
        torch.save(t, f)
        f.flush()
        os.fsync(f.fileno())
    os.rename(path + ".tmp", path)


for line in sys.stdin:
    way, n, count = line.strip().split(";")
    t = torch.ones(int(n) // 4)
    save(t)
    took = []
    for i in range(-1, int(count)):
        began = time.perf_counter()
        if way == "torch.load":
            torch.load(path)
        else:
            save(t)
        if i >= 0:
            took.append((time.perf_counter() - began) * 1e6)
    os.remove(path)
    print(json.dumps({"Took": took}), flush=True)
