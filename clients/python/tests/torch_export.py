"""Four ranks that export a model of DTensors, of which one is killed while it does so.

    torch_export.py HOST:PORT DIRECTORY

HOST:PORT is a muster store that is also the TCPStore. The ranks are forks of one process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Dict
from unittest import mock

import safetensors.torch
import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import muster_pg
from muster_pg import _arrays, _export

SIZE = 4


def load(directory: Path) -> Dict[str, torch.Tensor]:
    names = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: safetensors.torch.load_file(directory / name) for name in set(names.values())}
    assert {name for f in files.values() for name in f} == set(names), names
    return {name: files[file][name] for name, file in names.items()}


def fails(kind: Any, says: str, group: muster_pg.Group, parts: Dict[str, Any], directory: Path) -> None:
    try:
        group.export(parts, directory)
    except kind as e:
        assert says in str(e), e
    else:
        raise AssertionError("no error")


def exports(rank: int, group: muster_pg.Group, directory: Path) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    torch.manual_seed(0)
    x = torch.randn(10, 6)
    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.complex64)
    whole: Dict[str, torch.Tensor] = {str(kind): x.abs().to(kind) for kind in kinds}
    whole.update({"step": torch.tensor(7), "nothing": torch.zeros(0, 3), "turned": torch.randn(6, 10).t(), "conj": torch.randn(3, 2, dtype=torch.complex64).conj()})
    parts: Dict[str, Any] = dict(whole)
    for a in (Replicate(), Shard(0), Shard(1)):
        for b in (Replicate(), Shard(0), Shard(1)):
            name = f"{a} {b}"
            whole[name] = torch.randn(7, 5)
            parts[name] = distribute_tensor(whole[name], mesh, [a, b], src_data_rank=None)
    parts["parameter"] = torch.nn.Parameter(distribute_tensor(x, mesh, [Shard(0), Shard(0)], src_data_rank=None))
    whole["parameter"] = x
    parts["z tied"] = parts["torch.bfloat16"]
    parts["z tied in parts"] = parts[f"{Shard(0)} {Shard(1)}"]
    with mock.patch.object(_export, "_BLOCK", 64), mock.patch.object(_export, "_ROUND", 1000):
        group.export(parts, directory / "model", {"format": "pt"}, timeout=60)
    four = {"four": torch.arange(32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2).view(4, 8)}
    group.export({"four": muster_pg.Part(four["four"].view(torch.uint8)[rank : rank + 1].view(torch.float4_e2m1fn_x2), (rank, 0), (4, 8))}, directory / "four")
    if rank == 0:
        got = load(directory / "model")
        assert got.keys() == whole.keys(), got.keys() ^ whole.keys()
        for name, t in whole.items():
            assert got[name].dtype == t.dtype and got[name].shape == t.shape, name
            assert torch.equal(got[name].contiguous().view(-1).view(torch.uint8), t.resolve_conj().contiguous().view(-1).view(torch.uint8)), name
        for file in (directory / "model").glob("*.safetensors"):
            with safetensors.safe_open(file, "pt") as f:
                assert f.metadata()["format"] == "pt", file
            b, same = file.read_bytes(), safetensors.torch.save(safetensors.torch.load_file(file))
            assert b[8 + int.from_bytes(b[:8], "little") :] == same[8 + int.from_bytes(same[:8], "little") :], "not in the order of safetensors"
        with safetensors.safe_open(next((directory / "four").glob("*.safetensors")), "pt") as f:
            assert f.get_slice("four").get_dtype() == "F4" and f.get_slice("four").get_shape() == [4, 16]
    fails(muster_pg.Invalid, "its ranks have parts of a sum", group, {"x": DTensor.from_local(x, mesh, [Partial(), Replicate()])}, directory / "none")
    fails(muster_pg.Invalid, "tensor 'x': a tensor is sparse_coo", group, {"x": x.to_sparse()}, directory / "none")
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    fails(muster_pg.Invalid, "tensor 'x': the memory of a tensor has been freed", group, {"x": freed}, directory / "none")
    fails(muster_pg.Invalid, "tensor 'x': a tensor is on meta", group, {"x": torch.empty(4, device="meta")}, directory / "none")
    group.barrier()
    assert not (directory / "none").exists() or not list((directory / "none").iterdir())
    print("ok exports", flush=True)


def killed(rank: int, group: muster_pg.Group, directory: Path) -> None:
    """Has the last rank die when it has sent some of its part: the others raise Lost, and leave nothing."""
    x = torch.arange(4096.0)
    part = muster_pg.Part(x[1024 * rank : 1024 * (rank + 1)], (1024 * rank,), x.shape)
    data, n = _arrays.data, 0

    def dies(v: Any) -> memoryview:
        nonlocal n
        n += 1
        if rank == SIZE - 1 and n == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return data(v)

    with mock.patch.object(_export, "_BLOCK", 256), mock.patch.object(_arrays, "data", dies):
        try:
            group.export({"x": part}, directory / "killed", timeout=60)
        except muster_pg.RankError as e:
            assert isinstance(e, muster_pg.Lost) and e.lost == [SIZE - 1], e
    if rank == 0:  # which has begun to write
        assert not list((directory / "killed").iterdir()), list((directory / "killed").iterdir())
    print("ok killed", flush=True)


def rank(i: int, address: str, directory: Path) -> None:
    torch.set_num_threads(1)
    host, _, port = address.rpartition(":")
    store = dist.TCPStore(host, int(port), is_master=False)
    dist.init_process_group("gloo", store=dist.PrefixStore(f"export {os.getppid()}", store), rank=i, world_size=SIZE)
    with muster_pg.Group.join(i, SIZE, address, name="export", timeout=120) as group:
        exports(i, group, directory)
        dist.barrier()
        killed(i, group, directory)
    os._exit(0)  # gloo waits for the rank that is gone


if __name__ == "__main__":
    context = torch.multiprocessing.get_context("fork")
    ranks = [context.Process(target=rank, args=(i, sys.argv[1], Path(sys.argv[2]))) for i in range(SIZE)]
    for p in ranks:
        p.start()
    for p in ranks:
        p.join()
    assert [p.exitcode for p in ranks] == [0, 0, 0, -signal.SIGKILL], [p.exitcode for p in ranks]
