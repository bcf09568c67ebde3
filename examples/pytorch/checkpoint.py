"""A model that one job saves, sharded over its ranks with FSDP2, and another one of any size loads.

    muster run -n 4 -- python checkpoint.py save shards     # each rank saves its part, with PyTorch
    muster gather -o model/ --shard-size 4GiB shards        # joins the parts
    muster run -n 4 -- python checkpoint.py export model    # or both in one: the ranks write the model
    muster run -n 3 -- python checkpoint.py load model      # each rank reads its part, and no other
    python checkpoint.py whole model                        # one process reads all
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Dict

import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import muster_pg


def build(seed: int) -> nn.Module:
    """Returns a model whose rows are sharded over all ranks, as evenly as they can be."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(61, 32), nn.Linear(32, 50), nn.BatchNorm1d(50), nn.Linear(50, 61, bias=False, dtype=torch.bfloat16))
    return fully_shard(model)


def digest(weights: Dict[str, torch.Tensor]) -> str:
    """Returns a hash of whole tensors, by which jobs of different sizes compare theirs."""
    whole = {name: (w.full_tensor() if isinstance(w, DTensor) else w).contiguous() for name, w in weights.items()}
    return hashlib.sha256(safetensors.torch.save(whole)).hexdigest()[:12]


def files(directory: Path) -> Dict[str, str]:
    """Returns the file of each tensor."""
    index: Dict[str, str] = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    return index


def read(weights: Dict[str, torch.Tensor], directory: Path) -> None:
    """Fills this rank's parts of a model with exactly their bytes."""
    index = files(directory)
    for name, w in weights.items():
        with safetensors.safe_open(directory / index[name], "pt") as f:
            if not isinstance(w, DTensor):
                w.copy_(f.get_tensor(name))
                continue
            for part in w.__create_chunk_list__():  # one, with FSDP2; torch.distributed.checkpoint has the same
                at = tuple(slice(start, start + n) for start, n in zip(part.offsets, part.sizes))
                if w.to_local().numel():
                    w.to_local().copy_(f.get_slice(name)[at])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("save", "export", "load", "whole"))
    parser.add_argument("directory", type=Path)
    args = parser.parse_args()
    if args.do == "whole":
        weights: Dict[str, torch.Tensor] = {}
        for file in set(files(args.directory).values()):
            weights.update(safetensors.torch.load_file(args.directory / file))
        print(f"weights {digest(weights)}")
        return
    dist.init_process_group("gloo")
    weights = build(seed=1 if args.do == "load" else 0).state_dict()
    if args.do == "save":
        dcp.save(weights, checkpoint_id=args.directory)
    elif args.do == "export":
        with muster_pg.Group.from_env() as group:
            group.export(weights, args.directory, {"format": "pt"})
    else:
        read(weights, args.directory)
    bits = digest(weights)
    if dist.get_rank() == 0:
        print(f"weights {bits}", flush=True)
    dist.barrier()  # rank 0 has the store of all
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
