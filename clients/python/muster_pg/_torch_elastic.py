"""Training that goes on in the same processes when workers fail, leave or join.

The members of the native process group of torch are replaced in each view (_torch_native), and a
step is decided by one all-gather of the view's group in the store, so that it counts for all
processes or for none. docs/explanation/elastic-training.md has the protocol and its failures.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any, Callable, List, Optional, Sequence, TypeVar

import torch

from . import _arguments, _elastic_env, _env
from ._errors import Error, Excluded, Failed, Finished, Invalid, Kinds, Mismatch, RankError, StateLost, Timeout, clear, make, quote
from ._failure import ranks
from ._group import Group
from ._monitor import Monitor, gone
from ._roster import escape
from ._store import Store
from ._torch_ddp import Replicated, in_view
from ._torch_native import ATTEMPTS, Connections, World, attempts, check, disconnected, found_inf, timed_out
from ._torch_steps import JobView, Offer, Steps, Version
from ._torch_worker import Config, Worker, reported
from ._view import View

_log = logging.getLogger("muster_pg")

_NEWS = 5.0  # seconds for which the end of a view is waited for, after an operation failed that it may have ended
_JOIN_TIMEOUT = 30.0  # seconds in which the processes of a view, which have all come, connect
_GRACE = 0.2  # seconds in which processes that are alive complete what they do when the view ends
_SCRATCH = "torch/"  # below the job's keys: how the processes of a view connect

_T = TypeVar("_T")


class ElasticJob:
    """A training whose workers may fail, leave and join while the others go on.

        job = muster_pg.torch.ElasticJob.from_env()
        model = job.ddp(net)
        job.register(net, optimizer, scheduler)      # what a worker that joins gets from another one

        def train(view):                             # called in each view, until it returns on all workers
            for batch in batches(job.completed, view.rank, view.size):
                loss = criterion(model(batch), ...)
                loss.backward()
                job.step(optimizer, scheduler=scheduler)
                optimizer.zero_grad()

        job.run(train)

    The job makes torch's default process group, once; when a worker has failed, or another one has
    joined, the members of that group are replaced in place. A step that was under way is taken
    again, unless a worker has completed it: then all have its result. So each step counts once, and
    after each step all workers have the same bits. torch's collectives may be used in train, and
    raise when the view ends; so does step. Only run catches that.

    It is used by one thread. It owns the threads of its member, and one that ends a view.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        id: str,
        *,
        min_units: int,
        max_units: int = 0,
        unit_rank: int = 0,
        unit_size: int = 1,
        backend: str = "gloo",
        settings: str = "",
        settle: float = 0.0,
        ttl: float = 10.0,
        launch: str = "",
        timeout: float = 300.0,
        join_timeout: float = _JOIN_TIMEOUT,
        seed: Optional[int] = 0,
    ) -> None:
        """id is unique in the job. min_units and max_units are the fewest and the most workers that
        train; more are spares. A worker is a unit of unit_size processes, which have the same id, of
        which this is number unit_rank: they begin and end together. settings is text that all
        workers must have in common. settle, ttl and launch are as in ElasticMember.join.

        timeout, in seconds, bounds each wait: for enough workers, for a collective of torch, and for
        the vote of a step. A worker for which the others have waited that long, and five seconds
        more, is excluded.
        join_timeout bounds how long the workers of a view connect, once all have come. A child
        process, the monitor, kills this one when it has not run, or has stayed in train after the
        end of its registration, for the longer of join_timeout and twice ttl. seed: at the beginning
        of a view, torch's random numbers are seeded from it, the number of steps and the rank; None
        leaves them alone.

        Unsupported: this torch cannot replace the members of a group in place.
        """
        check(backend)
        unit_size = _arguments.between(_bad, "unit_size", unit_size, 1, 1 << 20)
        unit_rank = _arguments.between(_bad, "unit_rank", unit_rank, 0, unit_size - 1)
        parts = f"torch {torch.__version__}", backend, f"{unit_size} processes each" if unit_size > 1 else "", settings
        ttl = _arguments.seconds(_bad, "ttl", ttl, zero=False, forever=False)
        self._timeout = _arguments.seconds(_bad, "timeout", timeout, zero=False)
        self._join_timeout = _arguments.seconds(_bad, "join_timeout", join_timeout, zero=False, forever=False)
        config = Config(
            job, id, min_units, max_units or min_units, unit_rank, unit_size, ", ".join(p for p in parts if p), settle, ttl, launch, self._timeout, self._join_timeout
        )
        self._store, self._job, self._id = store, job, id
        self._worker, self._rank, self._processes = Worker(store, config), unit_rank, unit_size
        self._keys = store.below(f"membership/{escape(job)}/{_SCRATCH}")
        self._backend = backend
        self._monitor: Optional[Monitor] = None
        self._steps = Steps(job, seed)
        self._models: List[Replicated] = []
        self._view: Optional[JobView] = None
        self._result: Any = None  # of train, in the last view in which it has returned
        self._before: Optional[View] = None  # the last view in which all had connected
        self._called: Optional[Version] = None  # the state in which the last roll call was
        self._own = False  # run closes the store
        self._paused = time.monotonic()  # when training stopped

    @classmethod
    def from_env(cls, *, min_units: int = 0, max_units: int = 0, **more: Any) -> "ElasticJob":
        """Makes the job of a process that muster run --elastic MIN:MAX, or another launcher, has
        started with these variables:

            MUSTER_STORE      URL of the store, with MUSTER_SECRET_FILE and MUSTER_TLS_* as elsewhere
            MUSTER_JOB        name of the job, the same in all workers
            MUSTER_WORKER     id of this worker, unique in the job
            MUSTER_ELASTIC    MIN:MAX; min_units and max_units are used if it is not set
            MUSTER_LEASE      ttl of the worker's lease, as 30s; may be empty
            MUSTER_LAUNCH     launch; may be empty
            MUSTER_UNIT_RANK  and MUSTER_UNIT_SIZE: unit_rank and unit_size; may be empty

        Without MUSTER_WORKER, the processes of a torchrun are one worker. more is passed on.
        """
        w = _elastic_env.worker(os.environ, min_units, max_units)
        ttl = _arguments.seconds(_bad, "ttl", more.setdefault("ttl", w.ttl or 10.0), zero=False, forever=False)
        tls, secret = _env.credentials(os.environ)
        timeout = more.get("timeout", 300.0)
        with reported(w.job, "no store answers where MUSTER_STORE says"):
            store = Store.connect(w.store, tls=tls, secret=secret, timeout=timeout, liveness_timeout=ttl if ttl > 10 else None, wait=True)
        try:
            more.setdefault("launch", w.launch)
            job = cls(store, w.job, w.id, min_units=w.least, max_units=w.most, unit_rank=w.unit_rank, unit_size=w.unit_size, **more)
        except BaseException:
            store.close()
            raise
        job._own = True
        return job

    @property
    def completed(self) -> int:
        """The number of steps that the state has. A program that has read a checkpoint sets it,
        before run, in all processes of its worker.
        """
        return self._steps.done.steps

    @completed.setter
    def completed(self, steps: int) -> None:
        if self._worker.member is not None:
            raise _bad("completed is set before run", ())
        self._steps.done = Version(_arguments.between(_bad, "completed", steps, 0, (1 << 63) - 1))

    @property
    def unit_rank(self) -> int:
        """The number of this process in its worker."""
        return self._rank

    @property
    def unit_size(self) -> int:
        """The number of processes of each worker."""
        return self._processes

    @property
    def view(self) -> JobView:
        """The current view, in train."""
        if self._view is None:
            raise make(Invalid, "muster_pg.torch: elastic job: there is no view: call it in the function that run calls")
        return self._view

    @property
    def mesh(self) -> Any:
        """The device mesh of a worker of several processes: one replica ("replicate"), sharded over
        its processes ("shard"). What is computed over it is computed over the workers of the view:

            fully_shard(net, mesh=job.mesh)

        The first use waits for the worker's other processes.
        """
        if self._processes == 1:
            raise _bad("mesh: each worker is one process: use ddp, or start units of several processes", ())
        self._worker.begin(self._backend, self._keys)
        return self._worker.mesh

    def register(self, *objects: Any, position: Any = None) -> None:
        """Names the state of the training: models, optimizers, schedulers, a GradScaler. Each has
        state_dict and load_state_dict, of tensors and plain values. A worker that joins gets their
        values from another one.

        position is an object of that kind which moves on while a step is under way, as a sampler or
        a data loader: when a step is taken again, it has the state of before. A model's buffers have
        that too.
        """
        if self._view is not None:
            raise _bad("register is called in train: a worker that joins has to have registered the same", ())
        for o in (*objects, *([position] if position is not None else ())):
            if isinstance(o, Replicated):
                raise _bad("register the module that was given to ddp", ())
            if not (callable(getattr(o, "state_dict", None)) and callable(getattr(o, "load_state_dict", None))):
                raise _arguments.of_type(_bad, "an object", "one with state_dict and load_state_dict", o)
            self._steps.add(o)
        if position is not None:
            self._steps.position = position

    def ddp(self, module: torch.nn.Module, **options: Any) -> "Replicated":
        """Returns module with gradients that are averaged over all workers, by a
        DistributedDataParallel with these options: it is made anew in each view, since what it
        learns of a model in its first steps must be the same on all workers. With workers of several
        processes, the average is over the processes of the same number.
        """
        model = Replicated(module, options)
        self._models.append(model)
        return model

    def run(self, train: Callable[[JobView], _T]) -> Optional[_T]:
        """Joins the job, and calls train in each view until it has returned on all workers, which must
        decide alike that the work is done; then it leaves, and returns what train returned. It
        returns None if the job has finished without this worker, as a spare.

        What train raises is raised, if the end of a view has not caused it: this worker leaves the
        job as failed. A worker whose lease has expired, because it was stopped or cut off, joins
        again; Excluded is raised. StateLost: no worker has a whole state: begin with a checkpoint.
        """
        if self._view is not None:
            raise _bad("run is called in train", ())
        try:
            self._monitor = self._monitor or Monitor(self._job, self._id, max(2 * self._worker.config.ttl, self._join_timeout), self._stuck)
            self._worker.begin(self._backend, self._keys)
            self._steps.begin(self._worker.agree(self.completed))
            while True:
                try:
                    finished = self._in_view(self._worker.next(), train)
                except Finished:
                    _log.info("elastic job %s: finished, and this worker is at %s", self._job, self._steps.done)
                    finished = True
                if finished:
                    self._worker.leave()
                    _elastic_env.finished.add(self._job)
                    return self._result  # type: ignore[no-any-return]
        except BaseException as e:
            self._close(f"{type(e).__name__}: {e}")
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Ends the registration, if run has not, and the process groups. It may be called twice."""
        self._close("closed")

    def _close(self, cause: str) -> None:
        self._worker.close(cause)
        if self._own:
            self._store.close()
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.close()

    def _stuck(self) -> str:
        return gone(self._worker.member) if self._view is not None else ""  # in train, a wait ends with the registration

    def __enter__(self) -> "ElasticJob":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<muster_pg.torch.ElasticJob {quote(self._job)}: worker {quote(self._id)}, {self._steps.done}>"

    def step(self, optimizer: torch.optim.Optimizer, *, scaler: Any = None, scheduler: Any = None) -> bool:
        """Completes a step, after backward: the workers vote, in one round trip to the store; if
        all have come, each calls step of the optimizer, and of the scheduler. It returns False if
        the step was skipped because gradients on a worker had infinities, with a scaler
        (torch.amp.GradScaler), and raises if the view has ended.
        """
        view = self.view
        for o in (optimizer, scaler, scheduler):
            if o is not None and not self._steps.has(o):
                raise _bad(f"step: register has not been called with the {type(o).__name__}: a worker that joins would not get its state", ())
        if view.view.error is not None:  # the gradients may be anything
            raise view.view.error
        found = found_inf(scaler, optimizer) if scaler is not None else []

        def apply(skip: bool) -> None:
            if scaler is None:
                optimizer.step()
            else:
                for v in found:
                    v.fill_(skip)  # with it, the scaler skips the step and lowers the scale
                scaler.step(optimizer)
                scaler.update()
            if scheduler is not None and not skip:
                scheduler.step()

        self._steps.hold(view.view, optimizer, apply)
        skip = any(bool(v.item()) for v in found)
        votes = view.group.channel("step").all_gather_bytes(b"1" if skip else b"0", timeout=self._timeout)
        self._steps.apply(b"1" in votes)
        return not self._steps.skipped

    # Views.

    def _in_view(self, view: View, train: Callable[[JobView], _T]) -> bool:
        """Trains in a view, and reports whether train has returned on all workers."""
        world, connections, group = self._worker.world, Connections(), None
        try:
            view.at_end(connections.cut)
            if view.finished(timeout=self._join_timeout):  # the others are about to leave
                raise make(Finished, "")
            group = self._form(view, world, connections)
            self._view = JobView(view, group)
            came = self._steps.settle(self._view, self._offers, world)
            _log.info(
                "elastic job %s: view %d: rank %d of %d, at %s%s, after %.3f s",
                self._job, view.generation, group.rank, group.size, self._steps.done, came, time.monotonic() - self._paused,
            )  # fmt: skip
            with in_view(self._models, world.replicated):
                self._result = train(self._view)
            group.channel("train has returned").barrier(timeout=self._timeout)
            view.finish()
            return True
        except Exception as e:
            if not self._is_over(view, e):
                raise
            clear(e)
        finally:
            self._view = None
            self._paused = time.monotonic()
            connections.cut()
            if group is not None:
                group.close()
        world.drain()
        _log.info("elastic job %s: at %s: %s", self._job, self._steps.done, view.error)
        return False

    def _form(self, view: View, world: World, connections: Connections) -> Group:
        """Connects the workers of a view, all of them or none."""
        group = self._group = view.group(process=self._rank, processes=self._processes, timeout=self._timeout)
        _in_background(view, group.close)
        try:
            self._offers = [Offer.decode(o) for o in group.all_gather(self._steps.offer(world.handle).encode(), timeout=self._timeout)]
            self._agree(view)
            self._connect(view, world, connections, group)
            self._before = view
            if group.rank == 0:
                self._sweep(view)
            return group
        except BaseException:
            group.close()
            raise

    def _connect(self, view: View, world: World, connections: Connections, group: Group) -> None:
        """Has torch connect the processes, again for twice as long if it has failed on one of them.

        torch exchanges addresses through the store, and then connects. The first can be ended, but a
        process that waits for another one's connection waits for its timeout. So at the end of a view
        processes that are alive may complete what they do, and the first timeout is short.
        """
        store, entered = self._keys.below(f"{view.run}.{view.generation}/")._scoped(), threading.Event()

        def end() -> None:
            entered.wait(_GRACE)
            store._end("the view has ended")

        _in_background(view, end)
        outcomes: List[str] = []
        try:
            for attempt, seconds in enumerate(attempts(self._join_timeout)):
                failed = ""
                try:
                    world.enter(connections, store, view.generation * ATTEMPTS + attempt, group.rank, [o.connect for o in self._offers], seconds)
                except Exception as e:
                    failed = str(e) or type(e).__name__
                outcomes = group.all_gather(failed, timeout=2 * self._join_timeout)
                if not any(outcomes):
                    return
        finally:
            entered.set()
        self._unformed(view, outcomes)

    def _agree(self, view: View) -> None:
        """Excludes workers with another state than rank 0, the worker that has been in the job for
        longest.
        """
        n = self._processes
        odd = sorted({rank // n for rank, o in enumerate(self._offers) if o.digest != self._offers[rank % n].digest})
        if view.rank in odd:
            raise make(
                Mismatch,
                f"muster_pg.torch: elastic job {quote(self._job)}: what is registered has other names, dtypes or shapes in worker {view.workers[view.rank]} than in "
                f"worker {view.workers[0]}, which has been in the job for longer",
            )
        if odd:
            view.exclude(*odd)
            view.wait(self._timeout)
            raise self._error(view)

    def _unformed(self, view: View, outcomes: Sequence[str]) -> None:
        """Ends a view whose processes have not connected: without those that are new in it, if there are others."""
        if view.wait(_NEWS):
            raise self._error(view)
        said = "; ".join(f"rank {rank}, worker {view.workers[rank // self._processes]}: {why}" for rank, why in enumerate(outcomes) if why)
        new = view.newcomers(self._before)
        if self._before is not None and len(new) < view.size and new:
            _log.warning("elastic job %s: view %d did not connect, and goes on without %s: %s", self._job, view.generation, ranks(new), said)
            if view.rank == self._rank == 0:  # others may not know that the view before had connected
                view.exclude(*new)
            view.wait(self._timeout)
            raise self._error(view)
        raise make(Failed, f"muster_pg.torch: elastic job {quote(self._job)}: the {view.size} workers of view {view.generation} do not connect: {said}")

    def _error(self, view: View) -> Error:
        return view.error or make(Timeout, f"muster_pg.torch: elastic job {quote(self._job)}: view {view.generation} has not ended")

    def _sweep(self, view: View) -> None:
        """Deletes the keys of earlier views. Those of earlier runs expire."""
        prefix = view.run + "."
        try:
            old = []
            for e in self._keys.list(prefix):
                generation = e.key[len(prefix) :].partition("/")[0]
                if generation.isdecimal() and int(generation) < view.generation:
                    old.append(e.key)
            if old:
                self._keys.delete(*old)
        except Error as why:  # they expire too
            _log.debug("elastic job %s: keys of earlier views: %s", self._job, why)

    def _is_over(self, view: View, e: Exception) -> bool:
        """Reports whether e was caused by the end of the view, and waits for that. What torch
        raises is a RuntimeError, as are errors of the program; what the store raises is an Error.
        """
        if not isinstance(e, (RuntimeError, Error)) or isinstance(e, (Mismatch, Invalid, StateLost, Failed, Excluded, Finished)):
            return False
        if view.error is not None:
            return True
        if timed_out(e) or disconnected(e) or self._view is not None and isinstance(e, RankError) and isinstance(e, Timeout):
            return self._roll_call(view, e)
        return view.wait(_NEWS) or self._without(view, e)

    def _roll_call(self, view: View, e: Exception) -> bool:
        """Ends a view whose connections have failed, without the workers that do not come, and
        reports whether it has ended. If all come, the last one joins again; in each step once, since
        a collective that always fails would be taken for ever.
        """
        first, self._called = self._called != self._steps.done, self._steps.done
        try:  # one that is still in a collective comes when that has timed out
            self._group.channel("roll call").barrier(timeout=self._timeout + _NEWS if disconnected(e) and not timed_out(e) else _NEWS)
        except Error as late:
            return self._without(view, late) or view.wait(_NEWS)
        if first:
            _log.warning("elastic job %s: view %d ends, and all its workers form the next one: %s", self._job, view.generation, e)
            if view.rank == view.size - 1 and self._rank == 0:
                self._worker.forget()
        return first and view.wait(self._join_timeout)

    def _without(self, view: View, e: Exception) -> bool:
        """Ends the view without the ranks for which the others have waited for as long as they may,
        and reports whether it has ended.
        """
        missing = e.missing if isinstance(e, RankError) and isinstance(e, Timeout) else []
        missing = sorted({rank // self._processes for rank in missing})
        if not missing or view.rank in missing:
            return view.error is not None
        who = ", ".join(str(view.workers[rank]) for rank in missing)
        _log.warning("elastic job %s: view %d ends, and the next one is without worker %s: %s", self._job, view.generation, who, e)
        try:
            view.exclude(*missing)
        except Error:
            pass  # it has ended
        return view.wait(self._join_timeout)


def _in_background(view: View, call: Callable[[], object]) -> None:
    """Has call made when the view ends, by a thread of its own, because it waits for the store."""
    view.at_end(lambda: threading.Thread(target=call, name="muster view", daemon=True).start())


def _bad(why: str, also: Kinds) -> Error:
    return make((*also, Invalid)[0], "muster_pg.torch: elastic job: " + why)
