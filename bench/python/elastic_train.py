"""The training of elastic.py: the same model, data and optimizer in each way to go on after a failure.

WAY names it. Each worker writes a line to DIR/steps after each step that it has completed:

    time step rank size generation

generation is a number that grows whenever the workers, or their processes, have changed; step is the number of steps that
the weights have. A line "time - PID" says that a process has begun to train.
"""

import os
import sys
import time
from datetime import timedelta

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist
from torch import nn

SAVE = 50  # steps between checkpoints, in the ways that read one
WORKERS = 3

way, folder = os.environ["WAY"], os.environ["DIR"]
torch.set_num_threads(1)
log = os.open(os.path.join(folder, "steps"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def record(*values):
    """Appends a line, in one write."""
    os.write(log, (" ".join(map(str, (time.monotonic(), *values))) + "\n").encode())


def new():
    """Returns the model and its optimizer."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 640), nn.ReLU(), nn.Linear(640, 10))
    return net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


inputs, targets = torch.randn(1024, 256), torch.randint(10, (1024,))


def loss_of(model, step, rank):
    """Returns the loss of this worker's 320 examples of a step."""
    at = (step * 320 + rank * 107) % 704
    return nn.functional.cross_entropy(model(inputs[at : at + 320]), targets[at : at + 320])


def muster():
    import muster_pg.torch

    net, optimizer = new()
    job = muster_pg.torch.ElasticJob.from_env()
    model = job.ddp(net)
    job.register(net, optimizer)

    def train(view):
        while True:
            loss_of(model, job.completed, view.rank).backward()
            job.step(optimizer)
            optimizer.zero_grad()
            record(job.completed, view.rank, view.size, view.generation, os.getpid())

    job.run(train)


def from_checkpoint(net, optimizer, generation, saving):
    """Trains from the last checkpoint on, in the default process group."""
    rank, size, path = dist.get_rank(), dist.get_world_size(), os.path.join(folder, "checkpoint")
    step = 0
    if os.path.exists(path):
        saved = torch.load(path)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    model = nn.parallel.DistributedDataParallel(net)
    while True:
        optimizer.zero_grad()
        loss_of(model, step, rank).backward()
        optimizer.step()
        step += 1
        record(step, rank, size, generation, os.getpid())
        if step % SAVE == 0 and rank == 0:
            with saving():
                torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".new")
                os.replace(path + ".new", path)


def launcher():
    """Is restarted with all the others, by torchrun or ft_launcher."""
    from contextlib import nullcontext

    dist.init_process_group("gloo")
    from_checkpoint(*new(), int(os.environ["TORCHELASTIC_RESTART_COUNT"]), nullcontext)


def in_process():
    """Is called again in the processes that are left. Further processes are in reserve."""
    from nvidia_resiliency_ext import inprocess

    net, optimizer = new()
    port = int(os.environ["MASTER_PORT"])

    def seconds(n):
        return timedelta(seconds=n)

    class Outside(dist.TCPStore, inprocess.store.StoreMixin):  # by default the process of rank 0 hosts it, and the job ends with it
        critical_ranks = ()

        def __init__(self):
            super().__init__("127.0.0.1", port + 1, is_master=False, timeout=seconds(300))

    def train(wrapper: inprocess.CallWrapper = None):
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = dist.TCPStore("127.0.0.1", port + 2 + wrapper.iteration, size, rank == 0, multi_tenant=True, timeout=seconds(60))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=seconds(10))
        from_checkpoint(net, optimizer, wrapper.iteration, wrapper.atomic)

    inprocess.Wrapper(
        store_factory=Outside,
        rank_assignment=inprocess.Compose(
            inprocess.rank_assignment.MaxActiveWorldSize(WORKERS),
            inprocess.rank_assignment.ShiftRanks(),  # first
        ),
        monitor_thread_interval=seconds(0.1), monitor_process_interval=seconds(0.1), progress_watchdog_interval=seconds(0.1),
        heartbeat_interval=seconds(0.1), heartbeat_timeout=seconds(10), last_call_wait=seconds(0.1),
    )(train)()  # fmt: skip


def torchft():
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    net, inner = new()

    def load(state):
        net.load_state_dict(state["net"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=2, replica_id=os.environ["REPLICA"], hostname="localhost",
        load_state_dict=load, state_dict=lambda: {"net": net.state_dict(), "optimizer": inner.state_dict()},
        timeout=timedelta(seconds=10), init_sync=False,
    )  # fmt: skip
    model, optimizer = DistributedDataParallel(manager, net), Optimizer(manager, inner)
    while True:
        before = manager.current_step()
        optimizer.zero_grad()  # asks for the quorum
        loss_of(model, before, int(os.environ["REPLICA"])).backward()
        optimizer.step()  # unless the step has failed
        if manager.current_step() > before:
            rank = manager.participating_rank()
            record(manager.current_step(), -1 if rank is None else rank, manager.num_participants(), manager._quorum_id, os.getpid())


def store():
    """Hosts the store of in_process."""
    kept = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]) + 1, is_master=True, wait_for_workers=False)
    while kept:
        time.sleep(60)


if way != "store":
    record("-", os.getpid())
sys.exit({"store": store, "muster": muster, "torchrun": launcher, "ft_launcher": launcher, "in_process": in_process, "torchft": torchft}[way]())
