"""What workers of the cases in torch_elastic_cases.py and torch_elastic_units.py report when they have ended."""

import re
import subprocess
from typing import Collection, Dict, List

INVALID = "Invalid Error,ValueError: muster_pg.torch: elastic job: "

# Patterns, by case and worker; [02] is workers 0 and 2.
CASES = {
    "value [02]": r"done with 2",
    "value 1": r"ValueError .*: a bad batch$",
    "runtime [02]": r"done with 2",
    "runtime 1": r"RuntimeError .*: a bad batch$",
    "optimizer [02]": r"done with 2",
    "optimizer 1": r"RuntimeError .*: out of memory$",
    "dirty 0": r"done with 2 bits \w+ failed$",
    "dirty 1": r"done with 2 bits \w+$",
    "lost [01]": r"StateLost .*: of the 2 workers of view \d+, some were in the middle of an update, and the others do not have a whole state: begin",
    "again 0": r"Invalid .*: step 3 has failed in its update: let train raise that error$",
    "shape [01]": r"done with 2",
    "shape 2": r'Mismatch .*: what is registered has other names, dtypes or shapes in worker "w2" than in worker "w0", which has been in the job for longer$',
    "settings [01]": r"done with 2",
    "settings 2": r'MemberError MemberError,Mismatch: .* lr=1" here, and ".* lr=0" on worker "w0"$',
    "id 0": r"done with 1",
    "id 1": r'MemberError MemberError,IDInUse: .*: id in use: by worker "w"$',
    "few 0": r'MemberError MemberError,Timeout: .*: 1 of 2 workers are registered: "w0"$',
    "hangs [02]": r'done with 2 .* view \d+ ends, and the next one is without worker "w1": .* missing rank 1',
    "hangs 1": r"MemberError MemberError,Excluded",
    "late [012]": r"done with 3 .* ends, and all its workers form the next one",
    "unregistered 0": INVALID + r"step: register has not been called with the SGD",
    "unsendable [01]": INVALID + r"1 SGD\['param_groups'\]\[0\]\['decay'\]\['schedule'\] is a function, which cannot be sent",
    "scaler [01]": r"scale 512 skipped 1 bits",
    "scaler 3": r"scale 512 skipped 0 bits",
    "position [02]": r"drawn 12 bits",
    "source [12]": r"from 3 done with 2 bits",
    "unknown [012]": r"received 0 done with 3 bits",
    "cleared [02]": r"received 0 done with 3 bits",
    "cleared 1": r"received 1 done with 3 bits",
    "changed [02]": r"received 0 done with 3 bits",
    "changed 1": r"received 1 done with 3 bits",
    "other-torch 0": r"Unsupported .* has no torch.distributed._reconfigure: .*torchrun",
    "initialized 0": INVALID + r"torch.distributed is initialized",
    "outside 0": INVALID + r"there is no view",
}
UNITS = {
    "forward [0145]": r"ended bits",
    "forward 2": r'Lost .*: worker "w1" ends, because one of its 2 processes has ended, or has lost the store: .*lost rank 1',
    "backward [0145]": r"ended bits",
    "backward 2": r'Lost .*: worker "w1" ends, because one of its 2 processes has ended, or has lost the store: .*lost rank 1',
    "raises [01]": r"ended bits",
    "raises 2": r'Aborted .*: worker "w1" ends, because one of its 2 processes has ended, or has lost the store: .*rank 1: aborted: ValueError: a bad batch$',
    "raises 3": r"ValueError .*: a bad batch$",
    "scaled [0123]": r"scale 512 skipped 1 bits",
    "mismatch [01]": r"ended bits",
    "mismatch [23]": r"Mismatch .*: what is registered has other names",
    "forming 0": r'Lost .*: worker "w0" ends, because one of its 2 processes has ended, or has lost the store: .*lost rank 1',
    "counts [01]": INVALID + r'completed is 0 in process 0, 1 in process 1 of worker "w0": set it in all',
    "restarted [01]": r"ended bits",
    "restarted [23]": r"returned None after 0",
    "nested [01]": r"bits .*run is called in train .*register is called in train: .*the module of ddp .* was made in it",
    "away 0": r'MemberError MemberError,.*: join of worker "w0" in job "away": .*not connected for',
    "several [01]": r"\[2, 2, None, None\]$",
    "single 0": INVALID + r"mesh: each worker is one process.*unit_rank.*unit_size",
    "chosen 0": r"right",
    "from-env 0": r'.*MUSTER_ELASTIC not set: .*MUSTER_WORKER and .*"3:2": set MIN:MAX.*leave min_units and max_units out.*MUSTER_UNIT_RANK is "2" and MUSTER_UNIT_SIZE "2": .*--standalone, .*"soon": set a duration',
}


def check(said: List[str], reports: Dict[str, str], cases: Collection[str]) -> None:
    """Requires that the workers of some cases have said what they are to report, and have exited with status 0."""
    for worker, says in reports.items():
        case, _, numbers = worker.partition(" ")
        for number in numbers.strip("[]") if case in cases else "":
            if not re.search(rf"^{case} {number} 0 {says}", "\n".join(said), re.M):
                raise AssertionError(f"{case}: worker {number} does not report {says}")


def monitors(pid: int) -> int:
    """Returns how many monitors of a process there are."""
    said = subprocess.run(["ps", "-A", "-o", "args"], stdout=subprocess.PIPE, check=True).stdout.decode("utf-8", "replace")
    return len(re.findall(rf"_monitor_main\.py {pid} ", said))
