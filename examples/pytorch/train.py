"""A language model of characters, on any number of processes that may come, go and be killed.

    muster run --elastic 2:4 --max-restarts 99 -- python train.py --steps 300 README.md

The workers learn to continue the text of a file. Each has the whole model, and learns from its share of each batch.
With --unit-size 2, a worker is two processes, and the model is sharded over them (HSDP).
"""

import argparse
import hashlib
import logging
import os
import random
import signal
import threading

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import muster_pg.torch

BATCH, CONTEXT = 60, 32  # examples in a step, of all workers together; characters in an example


class Model(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(characters, 32)
        self.recurrent = nn.GRU(32, 128, batch_first=True)
        self.out = nn.Linear(128, characters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.recurrent(self.embed(x))[0])


def weights(model: nn.Module) -> str:
    """Returns a hash of all weights."""
    whole = (p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters())
    return hashlib.sha256(b"".join(w.detach().numpy().tobytes() for w in whole)).hexdigest()[:12]


def batch(text: torch.Tensor, step: int, rank: int, size: int) -> torch.Tensor:
    """Returns this process's share of the examples of a step: all draw the same ones, and take turns."""
    at = torch.randint(len(text) - CONTEXT, (BATCH,), generator=torch.Generator().manual_seed(step))
    return torch.stack([text[i : i + CONTEXT + 1] for i in at[rank::size].tolist()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="the text to learn")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--life", type=float, default=0, help="kill this process after about so many seconds, in the first half of the steps; 0: never")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    data = open(args.file, "rb").read()
    text = torch.tensor(list(data))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = Model(256)

    with muster_pg.torch.ElasticJob.from_env(settings=f"{args.steps} steps") as job:
        if job.unit_size > 1:
            for layer in net.children():
                fully_shard(layer, mesh=job.mesh)
            model = fully_shard(net, mesh=job.mesh)
        else:
            model = job.ddp(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
        job.register(net, optimizer, scheduler)  # what a worker that joins gets from another one

        def train(view: muster_pg.torch.JobView) -> str:
            while job.completed < args.steps:
                part = batch(text, job.completed, view.rank, view.size)
                loss = nn.functional.cross_entropy(model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten())
                loss.backward()
                job.step(optimizer, scheduler=scheduler)
                optimizer.zero_grad()
                if view.rank == 0 and job.completed % 50 == 0:
                    print(f"step {job.completed}: loss {loss.item():.3f}, {view.size} processes", flush=True)
            return weights(net)

        def die() -> None:
            if job.completed < args.steps / 2:
                os.kill(os.getpid(), signal.SIGKILL)

        if args.life > 0:
            timer = threading.Timer(args.life * random.uniform(0.5, 1.5), die)
            timer.daemon = True
            timer.start()
        bits = job.run(train)
        if bits is not None:  # not of a spare
            print(f"{job.completed} steps, weights {bits}", flush=True)


if __name__ == "__main__":
    main()
