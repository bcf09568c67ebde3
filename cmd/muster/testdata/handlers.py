"""Three agents of a rendezvous in one process: the second one is lost, the third one replaces it.

    handlers.py HOST:PORT
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import api, dynamic_rendezvous, registry

registry._register_out_of_tree_handlers()
params = api.RendezvousParameters(
    backend="muster", endpoint=sys.argv[1], run_id="job", min_nodes=2, max_nodes=2, local_addr="127.0.0.1", keep_alive_interval=1, read_timeout=30
)
first, second, third = (registry.get_rendezvous_handler(params) for _ in range(3))
pool = ThreadPoolExecutor()


def delay(seconds):
    assert seconds != 1, "an agent waits for changes, and not for a second"


dynamic_rendezvous._delay = delay


def form(*agents):
    infos = list(pool.map(lambda a: a.next_rendezvous(), agents))
    assert sorted(i.rank for i in infos) == [0, 1] and all(i.world_size == 2 for i in infos)
    at = [i.bootstrap_store_info for i in infos]
    assert [i.master_addr for i in at] == ["127.0.0.1"] * 2 and at[0].master_port != at[1].master_port
    assert not infos[0].store.check(["agent"]) and infos[1].store.add("agent", 1) == 1
    assert infos[0].store.get("agent") == b"1"
    workers = [TCPStore(i.master_addr, i.master_port, 2, False, wait_for_workers=False) for i in at]
    assert not workers[0].check(["worker"]) and workers[1].add("worker", 1) == 1
    assert workers[0].get("worker") == b"1"
    return infos


infos = form(first, second)
assert infos[0].rank == 0, "torch sorts them"
assert first.num_nodes_waiting() == 0
second._stop_heartbeats()
while first.num_nodes_waiting() == 0:  # nobody waits, and one is lost
    time.sleep(0.1)
infos = form(first, third)
assert infos[0].rank == 0
first._relays._relay._process.kill()
while first.num_nodes_waiting() == 0:
    time.sleep(0.1)
assert first.shutdown()
while len(third._state_holder.state.participants) == 2:  # one has left a job that is closed
    assert third.num_nodes_waiting() == 0
    time.sleep(0.1)
assert third.shutdown()
try:
    second.next_rendezvous()
except api.RendezvousClosedError as e:
    assert "use another --rdzv-id" in str(e), e
else:
    raise AssertionError("the job has ended")
second.shutdown()
print("ok")
