"""A rank under torchrun: all ranks add up theirs."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
t = torch.tensor([float(dist.get_rank())])
dist.all_reduce(t)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} sum {t.item()}\n", end="", flush=True)  # in one piece: ranks share the output
dist.destroy_process_group()
