"""Processes that make no progress in a phase, and what the process that watches them does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Dict, List, Tuple

import muster_pg
from muster_pg import _watch
from muster_pg._phase import Phase, Progress

BEGIN = """
import ctypes, os, signal, socket, sys, threading, time
import muster_pg
from muster_pg import _watch, _world
def phase(*args, **kwargs):
    it = muster_pg.phase(*args, **kwargs).__enter__()
    it.done(12)
    return it
"""
PROGRAMS = {
    "log": """
p = phase("loading shards", 48, stall=2)
for n in range(13, 38):
    p.done(n)
    time.sleep(0.1)
time.sleep(4.7)
with muster_pg.phase("in it"):
    time.sleep(2.7)
p.__exit__()
""",
    "exit": """
phase("holding the lock", stall=2, on_stall="exit")
ctypes.PyDLL(None).sleep(60)
""",
    "kill": """
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGABRT])
phase("deaf", stall=2, on_stall="exit")
time.sleep(60)
""",
    "cut": """
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
other, _ = listener.accept()
phase("computing", 0, stall=2, on_stall="cut")
print(one.recv(1), other.recv(1))
""",
    "stopped": """
p = phase("stopped", stall=3)
print("begun", flush=True)
time.sleep(1)
p.__exit__()
""",
    "executed": """
phase("restarting", stall=2, on_stall="exit")
if os.fork() == 0:
    time.sleep(5)
    os._exit(0)
os.execv("/bin/sleep", ["sleep", "4"])
""",
    "others": """
p = phase("training", stall=2, on_stall="exit")
with muster_pg.phase("saving in the background"):
    for n in range(13, 50):
        p.done(n)
        time.sleep(0.1)
time.sleep(60)
""",
    "waits": """
phase("training", stall=2, on_stall="exit")
_world._alone.waits(1)  # as a verb does
time.sleep(3)
_world._alone.waits(-1)
print("waited", flush=True)
time.sleep(60)
""",
    "signalled": """
signal.signal(signal.SIGUSR1, lambda *_: None)
phase("\x1b[2J", stall=2, on_stall="exit")
os.killpg(0, signal.SIGUSR1)
time.sleep(60)
""",
    "closed": """
os.close(0)
os.close(1)
phase("without files", stall=2, on_stall="exit")
time.sleep(60)
""",
    "full": """
_, w = os.pipe()
os.dup2(w, 2)
phase("printing", stall=2, on_stall="exit")
os.write(2, b"x" * 1_000_000)
""",
    "ended": """
p = phase("training", stall=2, on_stall="exit")
_watch._monitor.process.kill()
time.sleep(60)
""",
    "none": """
threading.Thread(target=lambda: None).start()
phase("unwatched")
assert _watch._monitor is None
""",
}


class Watched(unittest.TestCase):
    """Runs the programs at the same time."""

    ended: Dict[str, Tuple[int, str, str]]  # exit status, output and standard error
    left: List[str]

    @classmethod
    def setUpClass(cls) -> None:
        root = str(Path(muster_pg.__file__).parents[1])
        env = {k: v for k, v in os.environ.items() if not k.startswith(("MUSTER", "MASTER"))}
        env.update(PYTHONPATH=root, RANK="3", WORLD_SIZE="4", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
        processes = {
            name: subprocess.Popen(
                [sys.executable, "-c", BEGIN + program], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            for name, program in PROGRAMS.items()
        }
        stopped = processes["stopped"]
        assert stopped.stdout is not None and stopped.stdout.readline() == "begun\n"
        os.killpg(stopped.pid, signal.SIGSTOP)
        time.sleep(4)
        os.killpg(stopped.pid, signal.SIGCONT)
        cls.ended = {}
        for name, p in processes.items():
            out, err = p.communicate(timeout=60)
            cls.ended[name] = p.returncode, out, err
        cls.left = monitors(*(p.pid for p in processes.values()))

    def said(self, name: str, status: int) -> List[str]:
        """Returns the lines of the process that watches."""
        code, _, err = self.ended[name]
        self.assertEqual(code, status, err)
        self.assertEqual(len(re.findall("is not reported, only watched: MUSTER_STORE is not set", err)), 1, err)
        return re.findall("^muster: (.*)", err, re.M)

    def test_log(self) -> None:
        self.assertEqual(
            self.said("log", 0),
            [
                "rank 3 has made no progress for 2s: loading shards, 37 of 48 (77%)",
                "rank 3 has made no progress for 2s: in it",
            ],
        )

    def test_exit_while_a_thread_holds_the_interpreter(self) -> None:
        self.assertEqual(self.said("exit", -signal.SIGABRT), ["rank 3 has made no progress for 2s: holding the lock, 12 done"])
        self.assertRegex(self.ended["exit"][2], r'(?s)Fatal Python error: Aborted\n\n.*thread 0x\w+ \(most recent call first\):\n  File "<string>", line \d+ in <module>')

    def test_one_that_does_not_end_is_killed(self) -> None:
        self.assertEqual(self.said("kill", -signal.SIGKILL), ["rank 3 has made no progress for 2s: deaf, 12 done"])

    @unittest.skipUnless(sys.platform == "linux", "SKIPPED: cut is for Linux")
    def test_cut(self) -> None:
        self.assertEqual(self.said("cut", 0), ["rank 3 has made no progress for 2s: computing, 12 done"])
        self.assertEqual(self.ended["cut"][1], "b'' b''\n")

    def test_the_time_in_which_both_are_stopped_does_not_count(self) -> None:
        self.assertEqual(self.said("stopped", 0), [])

    def test_a_program_that_the_process_executes_is_not_watched(self) -> None:
        self.assertEqual(self.said("executed", 0), [])

    def test_one_in_which_another_phase_progresses(self) -> None:
        self.assertEqual(self.said("others", -signal.SIGABRT), ["rank 3 has made no progress for 2s: training, 49 done"])

    def test_one_that_waits_for_other_ranks(self) -> None:
        self.assertEqual(self.said("waits", -signal.SIGABRT), ["rank 3 has made no progress for 2s: training, 12 done"])
        self.assertEqual(self.ended["waits"][1], "waited\n")

    def test_a_signal_to_all_processes(self) -> None:
        self.assertEqual(self.said("signalled", -signal.SIGABRT), [r"rank 3 has made no progress for 2s: \x1b[2J, 12 done"])

    def test_without_standard_files(self) -> None:
        self.assertEqual(self.said("closed", -signal.SIGABRT), ["rank 3 has made no progress for 2s: without files, 12 done"])

    def test_nobody_reads_standard_error(self) -> None:
        self.assertEqual(self.ended["full"], (-signal.SIGKILL, "", ""))

    def test_another_monitor_is_started_once(self) -> None:
        self.assertEqual(self.said("ended", -signal.SIGABRT), ["rank 3 has made no progress for 2s: training, 12 done"])
        self.assertEqual(self.ended["ended"][2].count("rank 3: the monitor process has ended: another one is started\n"), 1)

    def test_without_a_stall_there_is_no_process(self) -> None:
        self.assertEqual(self.said("none", 0), [])

    def test_no_process_is_left(self) -> None:
        self.assertEqual(self.left, [])


def monitors(*pids: int) -> List[str]:
    """Returns the processes that watch others, after a moment."""
    time.sleep(0.5)
    said = subprocess.run(["ps", "-A", "-o", "args"], stdout=subprocess.PIPE, check=True, text=True).stdout
    return re.findall(rf"_monitor_main\.py (?:{'|'.join(map(str, pids))}) ", said)


class Monitor(unittest.TestCase):
    def test_it_ends_with_the_last_that_needs_it(self) -> None:
        one, other = Progress("rank 0"), Progress("rank 1")
        for progress in one, other:
            Phase(progress, lambda why, also: muster_pg.Invalid(why), "a", 0, 60, "log").__enter__()
        self.assertEqual(len(monitors(os.getpid())), 1)
        with Phase(one, lambda why, also: muster_pg.Invalid(why), "b", 0, 0, "log") as b:
            b.done(1)
        b.done(5)  # does not change what is watched now
        self.assertEqual(one.state().done, 0)
        one.close()
        self.assertIsNotNone(_watch._monitor)
        other.close()
        self.assertIsNone(_watch._monitor)
        self.assertEqual(monitors(os.getpid()), [])


if __name__ == "__main__":
    unittest.main()
