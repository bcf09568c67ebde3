"""Compares ways to go on after a worker of a PyTorch training was killed: steps over time, on one machine, with gloo.

    PYTHONPATH=clients/python python bench/python/elastic.py --muster MUSTER --ways muster,torchrun --svg OUT.svg

Each way trains with three workers (elastic_train.py). A worker is killed (SIGKILL) about every ten seconds, at the same
times and with the same ranks in each way; a kill waits until the job has completed a step since the one before. Ways:

    muster       muster_pg.torch.ElasticJob, muster run --elastic 2:3
    torchrun     torchrun --max-restarts, and a checkpoint
    ft_launcher  the same with the launcher of NVIDIA's resiliency extension
    in_process   its wrapper for restarts in the same processes, with one process in reserve for each kill, and a checkpoint
    torchft      a lighthouse, and a torchrun for each worker

The last three need their packages in this Python.
"""

import argparse
import collections
import ctypes
import json
import os
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TRAIN = os.path.join(HERE, "elastic_train.py")
WORKERS, BIN = 3, 0.5  # bin: seconds of a point in the chart
AGAIN = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # else torchrun 2.15 restarts workers over the store of before, with addresses of the dead
START = 120  # seconds until the first step, at most
NAMES = {
    "muster": "muster run --elastic",
    "torchft": "torchft",
    "in_process": "NVIDIA, in-process restart",
    "torchrun": "torchrun --max-restarts",
    "ft_launcher": "NVIDIA, ft_launcher",
}

Step = collections.namedtuple("Step", "time step rank size generation pid")


def free_ports(n):
    """Returns a port that is free, as the next n - 1 are likely to be."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    return port if port + n < 60000 else free_ports(n)


def commands(way, muster, kills):
    """Returns the commands of a way, each with its variables."""
    run = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", "99", "--monitor-interval", "0.1"]
    port = free_ports(200)
    if way == "muster":
        return [([muster, "run", "--elastic", f"2:{WORKERS}", "--max-restarts", "99", "--no-prefix", "--", sys.executable, TRAIN], {})]
    if way == "torchrun":
        return [([*run, "--standalone", "--nproc-per-node", str(WORKERS), TRAIN], AGAIN)]
    if way == "ft_launcher":
        launcher = os.path.join(os.path.dirname(sys.executable), "ft_launcher")
        more = ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--ft-gpu-memory-reclaim-timeout", "0"]
        return [([launcher, *run[3:], "--nproc-per-node", str(WORKERS), *more, TRAIN], {})]
    if way == "in_process":
        size = WORKERS + kills
        env = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        return [([sys.executable, TRAIN], {**env, "WAY": "store"})] + [([sys.executable, TRAIN], {**env, "RANK": str(r)}) for r in range(size)]
    lighthouse = os.path.join(os.path.dirname(sys.executable), "torchft_lighthouse")
    times = ["--heartbeat_timeout_ms", "500", "--join_timeout_ms", "10000", "--quorum_tick_ms", "10"]
    return [([lighthouse, "--bind", f"[::]:{port}", "--min_replicas", "2", *times], {})] + [
        ([*run, "--nnodes", "1", "--nproc-per-node", "1", "--master-port", str(port + 1 + i), TRAIN], {**AGAIN, "REPLICA": str(i), "TORCHFT_LIGHTHOUSE": f"http://localhost:{port}"})
        for i in range(WORKERS)
    ]


class Log:
    """What the workers of a run have written."""

    def __init__(self, path):
        self.path, self.at, self.steps, self.begun, self.rest = path, 0, [], [], ""

    def read(self):
        if os.path.exists(self.path):
            with open(self.path) as f:
                f.seek(self.at)
                text = self.rest + f.read()
                self.at = f.tell()
            *lines, self.rest = text.split("\n")
            for line in map(str.split, lines):
                if line[1] == "-":
                    self.begun.append(float(line[0]))
                else:
                    self.steps.append(Step(float(line[0]), *map(int, line[1:])))
        return self.steps

    def wait(self, condition, until):
        while not any(map(condition, reversed(self.read()))):
            if time.monotonic() > until:
                raise TimeoutError(f"no such step; the last: {self.steps[-1:]}")
            time.sleep(0.02)


def stop(processes):
    """Ends all that a way has started. Orphans are children of this process."""
    for p in processes:
        p.terminate()
    until = time.monotonic() + 15
    while time.monotonic() < until and any(p.poll() is None for p in processes):
        time.sleep(0.05)
    for _ in range(100):
        left = children()
        if not left:
            return
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def children():
    """Returns the children of this process."""
    found = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as f:
            found += map(int, f.read().split())
    return found


def used():
    """Returns the seconds of processors that the machine has used, and those of ended children of this process."""
    with open("/proc/stat") as f:
        user, nice, system = map(int, f.readline().split()[1:4])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (user + nice + system) / os.sysconf("SC_CLK_TCK"), own.ru_utime + own.ru_stime


def measure(way, options):
    """Trains in a way while workers are killed, and returns its figures."""
    before, began = used(), time.monotonic()
    chance = random.Random(options.seed)
    plan = [(options.every * (i + 0.8 + chance.uniform(0, 0.3)), chance.randrange(WORKERS)) for i in range(int(options.seconds / options.every - 1))]
    folder = tempfile.mkdtemp(prefix="muster-elastic-")
    log, kills, processes = Log(os.path.join(folder, "steps")), [], []
    output = open(os.path.join(folder, "output"), "w")
    try:
        for command, env in commands(way, options.muster, len(plan)):
            env = {**os.environ, "OMP_NUM_THREADS": "1", "WAY": way, "DIR": folder, **env}
            processes.append(subprocess.Popen(command, env=env, stdout=output, stderr=output, stdin=subprocess.DEVNULL))
        log.wait(lambda s: s.size == WORKERS, time.monotonic() + START)
        log.wait(lambda s: s.step >= log.steps[-1].step and s.size == WORKERS, time.monotonic() + START)
        begin = log.steps[-1].time
        for at, rank in plan:
            if kills:
                log.wait(lambda s: s.generation > kills[-1].generation, begin + options.seconds)
            time.sleep(max(0, begin + at - time.monotonic()))
            last = max(log.read(), key=lambda s: (s.generation, s.time))
            victim = [s for s in log.steps if s.generation == last.generation and s.rank == rank % last.size][-1]
            os.kill(victim.pid, signal.SIGKILL)
            kills.append(victim._replace(time=time.monotonic(), generation=last.generation))
        time.sleep(max(0, begin + options.seconds - time.monotonic()))
        log.read()
    except TimeoutError as e:
        print(f"{way}: {e}; its output is in {folder}", file=sys.stderr)
    finally:
        stop(processes)
        output.close()
    result = figures(way, log, kills, begin, options.seconds)
    whole, own = (now - then for now, then in zip(used(), before))
    result["others"] = round((whole - own) / (time.monotonic() - began), 2)  # processors that others have used
    if not options.keep:
        shutil.rmtree(folder)
    return result


def figures(way, log, kills, begin, seconds):
    """Returns what the records of a run say."""
    first, top = {}, 0  # the first completion of each step in each generation
    for s in sorted(log.steps):
        first.setdefault((s.generation, s.step), s)
    new, again = [0] * int(seconds / BIN), [0] * int(seconds / BIN)
    fresh = []
    for s in sorted(first.values()):
        at = int((s.time - begin) / BIN)
        if s.step > top:
            top = s.step
            fresh.append(s)
        if 0 <= at < len(new):
            (new if fresh[-1] is s else again)[at] += 1
    until = begin + seconds
    back = [min((s.time for s in first.values() if s.generation > k.generation), default=until) - k.time for k in kills]
    beyond = [min((s.time for s in fresh if s.generation > k.generation and s.time > k.time), default=until) - k.time for k in kills]
    started = sum(1 for t in log.begun if begin < t < until)
    return {
        "way": way, "kills": [[round(k.time - begin, 2), k.rank] for k in kills], "back": back, "beyond": beyond,
        "steps": sum(new), "again": sum(again), "started": started, "new": new, "redone": again,
    }  # fmt: skip


def table(results):
    """Prints the figures, as a table of Markdown."""
    print("| | kills | next step, median | longest | next new step, median | longest | steps | taken again | processes started for each kill |")
    print("|---|---|---|---|---|---|---|---|---|")
    for r in results:
        times = [f(v) for v in (r["back"], r["beyond"]) for f in (statistics.median, max)]
        print(f"| {NAMES[r['way']]} | {len(r['kills'])} | {' | '.join(f'{t:.2f} s' for t in times)} | {r['steps']} | {r['again']} | {r['started'] / len(r['kills']):.1f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--muster", default="muster", help="the program muster")
    parser.add_argument("--ways", default="muster,torchrun", help="ways, separated by commas")
    parser.add_argument("--seconds", type=float, default=80, help="for which each way trains")
    parser.add_argument("--every", type=float, default=10, help="seconds between kills")
    parser.add_argument("--seed", type=int, default=1, help="of the times of kills, and the ranks")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--svg", help="file for the chart")
    parser.add_argument("--keep", action="store_true", help="keep the output of the workers")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    results = []
    for way in options.ways.split(","):
        results.append(measure(way, options))
        print({k: v for k, v in results[-1].items() if k not in ("new", "redone")}, file=sys.stderr)
    table(results)
    if options.json:
        with open(options.json, "w") as f:
            json.dump(results, f)
    if options.svg:
        import elastic_chart

        with open(options.svg, "w") as f:
            f.write(elastic_chart.chart(results, options.seconds, BIN, NAMES))


if __name__ == "__main__":
    main()
