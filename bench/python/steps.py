# vLLM's queue for bench steps: RANK SIZE HANDLE-FILE. A line is VERB;BYTES;COUNT, answered by one line of JSON: Took has when rank 0 sent
# each object, and when the others had it, in µs.
import json
import os
import pickle
import resource
import sys
import time

from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

rank, size, meeting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if rank == 0:
    queue = MessageQueue(size - 1, size - 1, local_reader_ranks=list(range(1, size)))
    with open(meeting + ".new", "wb") as f:
        pickle.dump(queue.export_handle(), f)
    os.rename(meeting + ".new", meeting)
else:
    while not os.path.exists(meeting):
        time.sleep(0.01)
    with open(meeting, "rb") as f:
        queue = MessageQueue.create_from_handle(pickle.load(f), rank)
queue.wait_until_ready()


def cpu():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


for line in sys.stdin:
    _, n, count = line.strip().split(";")
    value = bytes(int(n))
    took = []
    for i in range(-3, int(count)):
        if i == 0:
            spent = cpu()
        if rank == 0:
            time.sleep(0.001)
            began = time.time_ns()
            queue.enqueue(value)
        else:
            assert len(queue.dequeue()) == len(value)
            began = time.time_ns()
        if i >= 0:
            took.append(began / 1e3)
    print(json.dumps({"Took": took, "CPU": (cpu() - spent) * 1e6}), flush=True)
