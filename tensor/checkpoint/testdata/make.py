"""Writes the checkpoints of this directory with the torch of the interpreter that runs it:

    python make.py torch-2.15

model.safetensors is the model, dcp and hf are what four ranks write of it with torch.distributed.checkpoint.
hf needs torch 2.8. "t" is not row-major in dcp, and is not in hf, whose writer refuses it.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor


def model():
    numbers = torch.Generator().manual_seed(1)
    new = {
        "q": torch.randn(8, 6, generator=numbers),
        "two": torch.randn(7, 9, generator=numbers).to(torch.bfloat16),
        "o": torch.randn(6, 10, generator=numbers),
        "bias": torch.randn(5, generator=numbers),
        "three": torch.randn(4, 5, 6, generator=numbers).half(),
        "ids": torch.arange(10),
        "step": torch.tensor(7),
        "flags": torch.tensor([True, False, True]),
        "f8": torch.randn(6, 2, generator=numbers).to(torch.float8_e4m3fn),
        "empty": torch.zeros(0, 3),
    }
    if hasattr(torch, "float8_e8m0fnu"):
        new["e8m0"] = torch.arange(100, 110, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    if hasattr(torch, "float4_e2m1fn_x2"):
        new["f4"] = torch.arange(12, dtype=torch.uint8).reshape(2, 6).view(torch.float4_e2m1fn_x2)
    return new


def save(rank, size, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2] if len(sys.argv) > 2 else "29771", RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")
    line, grid = DeviceMesh("cpu", list(range(size))), DeviceMesh("cpu", torch.arange(size).reshape(2, -1))
    placed = {
        "q": (line, [Shard(0)]),
        "two": (grid, [Shard(0), Shard(1)]),
        "o": (grid, [Replicate(), Shard(1)]),
        "bias": (line, [Shard(0)]),
        "three": (grid, [Shard(1), Shard(2)]),
    }
    shards = {name: distribute_tensor(t, *placed[name]) if name in placed else t for name, t in model().items()}
    others = {"t": model()["q"].t(), "parameter": torch.nn.Parameter(torch.ones(2)), "options": {"lr": 0.1, "betas": [0.9, 0.99]}}
    dcp.save({**shards, **others}, checkpoint_id=out + "/dcp")
    try:
        from torch.distributed.checkpoint import HuggingFaceStorageWriter

        writer = HuggingFaceStorageWriter(path=out + "/hf", save_distributed=True)
    except (ImportError, TypeError):
        writer = None
    if writer:
        os.makedirs(out + "/hf", exist_ok=True)
        dcp.save(shards, storage_writer=writer)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    save_file(model(), sys.argv[1] + "/model.safetensors", metadata={"format": "pt"})
    mp.spawn(save, args=(4, sys.argv[1]), nprocs=4)
