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

from . import _arguments, _env
from ._elastic import ElasticMember
from ._errors import Error, Evicted, Excluded, Failed, Finished, IDInUse, Invalid, Kinds, Mismatch, RankError, StateLost, Timeout, make, quote
from ._failure import ranks
from ._group import Group
from ._roster import escape
from ._store import Store
from ._torch_ddp import Replicated, in_view
from ._torch_native import Connections, World, check, disconnected, found_inf, timed_out
from ._torch_steps import JobView, Offer, Steps, Version
from ._view import View

_log = logging.getLogger("muster_pg")

_NEWS = 5.0  # seconds for which the end of a view is waited for, after an operation failed that it may have ended
_REPORT = 10.0  # seconds after which the log says what is waited for, again and again
_JOIN_TIMEOUT = 30.0  # seconds for which the processes of a view wait for each other to connect
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
        backend: str = "gloo",
        settings: str = "",
        settle: float = 0.0,
        ttl: float = 10.0,
        timeout: float = 300.0,
        join_timeout: float = _JOIN_TIMEOUT,
        seed: Optional[int] = 0,
    ) -> None:
        """id is unique in the job. min_units and max_units are the fewest and the most workers that
        train; more are spares. settings is text that all workers must have in common. settle and
        ttl are as in ElasticMember.join.

        timeout, in seconds, bounds each wait: for enough workers, for a collective of torch, and for
        the vote of a step. A worker for which the others have waited that long, and five seconds
        more, is excluded.
        join_timeout bounds how long the workers of a view wait for each other to connect. seed: at
        the beginning of a view, torch's random numbers are seeded from it, the number of steps and
        the rank; None leaves them alone.

        Unsupported: this torch cannot replace the members of a group in place.
        """
        check(backend)
        self._store, self._job, self._id = store, job, id
        self._least, self._most = min_units, max_units or min_units
        self._settings = f"torch {torch.__version__}, {backend}" + (f", {settings}" if settings else "")
        self._settle, self._ttl = settle, ttl
        self._timeout = _arguments.seconds(_bad, "timeout", timeout, zero=False)
        self._join_timeout = _arguments.seconds(_bad, "join_timeout", join_timeout, zero=False, forever=False)
        self._keys = store.below(f"membership/{escape(job)}/{_SCRATCH}")
        self._backend = backend
        self._world: Optional[World] = None
        self._member: Optional[ElasticMember] = None
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
        """Makes the job of a worker that muster run --elastic MIN:MAX, or another launcher, has
        started with these variables:

            MUSTER_STORE    URL of the store, with MUSTER_SECRET_FILE and MUSTER_TLS_* as elsewhere
            MUSTER_JOB      name of the job, the same in all workers
            MUSTER_WORKER   id of this worker, unique in the job
            MUSTER_ELASTIC  MIN:MAX; min_units and max_units are used if it is not set
            MUSTER_LEASE    ttl of the worker's lease, as 30s; may be empty

        more is passed on.
        """
        env = os.environ
        missing = [name for name in ("MUSTER_STORE", "MUSTER_JOB", "MUSTER_WORKER") if not env.get(name)]
        if not env.get("MUSTER_ELASTIC") and min_units == 0:
            missing.append("MUSTER_ELASTIC")
        if missing:
            raise _bad(f"{' and '.join(missing)} not set: start the program with muster run --elastic MIN:MAX, or set them", ())
        if env.get("MUSTER_ELASTIC"):
            low, _, high = env["MUSTER_ELASTIC"].partition(":")
            if not (low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high)):
                raise _bad(f"MUSTER_ELASTIC is {quote(env['MUSTER_ELASTIC'])}: set MIN:MAX, with 1 ≤ MIN ≤ MAX, as in 2:8", ())
            least, most = int(low), int(high)
            if (min_units or least, max_units or most) != (least, most):
                raise _bad(f"MUSTER_ELASTIC is {least}:{most}, and the program has {min_units}:{max_units}: leave min_units and max_units out", ())
            min_units, max_units = least, most
        if env.get("MUSTER_UNIT_SIZE") not in (None, "", "1"):
            raise _bad(f"MUSTER_UNIT_SIZE is {env['MUSTER_UNIT_SIZE']}: a worker is one process here: leave --unit-size out", ())
        if env.get("MUSTER_LEASE"):
            seconds = _env.seconds(env["MUSTER_LEASE"])
            if not seconds:
                raise _bad(f"MUSTER_LEASE is {quote(env['MUSTER_LEASE'])}: set a duration, as 30s", ())
            more.setdefault("ttl", seconds)
        tls, secret = _env.credentials(env)
        timeout = more.get("timeout", 300.0)
        store = Store.connect(env["MUSTER_STORE"], tls=tls, secret=secret, timeout=timeout, wait=True)
        try:
            job = cls(store, env["MUSTER_JOB"], env["MUSTER_WORKER"], min_units=min_units, max_units=max_units, **more)
        except BaseException:
            store.close()
            raise
        job._own = True
        return job

    @property
    def completed(self) -> int:
        """The number of steps that the state has. A program that has read a checkpoint sets it,
        before run.
        """
        return self._steps.done.steps

    @completed.setter
    def completed(self, steps: int) -> None:
        if self._member is not None:
            raise _bad("completed is set before run", ())
        self._steps.done = Version(_arguments.between(_bad, "completed", steps, 0, (1 << 63) - 1))

    @property
    def view(self) -> JobView:
        """The current view, in train."""
        if self._view is None:
            raise make(Invalid, "muster_pg.torch: elastic job: there is no view: call it in the function that run calls")
        return self._view

    def register(self, *objects: Any, position: Any = None) -> None:
        """Names the state of the training: models, optimizers, schedulers, a GradScaler. Each has
        state_dict and load_state_dict, of tensors and plain values. A worker that joins gets their
        values from another one.

        position is an object of that kind which moves on while a step is under way, as a sampler or
        a data loader: when a step is taken again, it has the state of before. A model's buffers have
        that too.
        """
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
        learns of a model in its first steps must be the same on all workers.
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
        try:
            self._world = self._world or World(self._backend, self._keys.below("none/"), self._timeout)
            while True:
                try:
                    finished = self._in_view(self._next(), train)
                except Finished:
                    _log.info("elastic job %s: finished, and this worker is at %s", self._job, self._steps.done)
                    finished = True
                if finished:
                    self._leave()
                    return self._result  # type: ignore[no-any-return]
        finally:
            self.close()

    def _leave(self) -> None:
        """Leaves a job that has finished."""
        member, self._member = self._member, None
        assert member is not None
        try:
            member.leave(timeout=self._join_timeout)
        except Error as e:  # it is evicted, or the store has ended with the job
            _log.info("elastic job %s: %s", self._job, e)
        member.close()

    def close(self) -> None:
        """Ends the registration, if run has not, and the process group. It may be called twice."""
        member, self._member = self._member, None
        world, self._world = self._world, None
        if member is not None:
            member.close()
            if world is not None:
                world.linger()
        if world is not None:
            world.close()
        if self._own:
            self._store.close()

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

        self._steps.hold(view.view, apply)
        skip = any(bool(v.item()) for v in found)
        votes = view.group.channel("step").all_gather_bytes(b"1" if skip else b"0", timeout=self._timeout)
        self._steps.apply(b"1" in votes)
        return not self._steps.skipped

    # Views.

    def _next(self) -> View:
        """Returns the next view. It joins the job, for the first time or again."""
        until = time.monotonic() + self._timeout
        while True:
            left = max(until - time.monotonic(), 0)
            try:
                if self._member is None:
                    self._member = ElasticMember.join(
                        self._store, self._job, self._id, least=self._least, most=self._most, settings=self._settings,
                        settle=self._settle, ttl=self._ttl, timeout=left,
                    )  # fmt: skip
                return self._member.next(timeout=min(left, _REPORT))
            except (Excluded, Finished):
                raise
            except Timeout as e:
                if left <= _REPORT:
                    raise
                _log.warning("elastic job %s: it still waits: %s", self._job, e)
            except Evicted as e:
                _log.warning("elastic job %s: %s: it joins again", self._job, e)
                if self._member is not None:
                    self._member.close()
                    self._member = None
            except IDInUse:  # an earlier process of this worker, or its lease has not expired yet
                if time.monotonic() + 0.1 > until:
                    raise
                time.sleep(0.1)

    def _in_view(self, view: View, train: Callable[[JobView], _T]) -> bool:
        """Trains in a view, and reports whether train has returned on all workers."""
        assert self._world is not None
        world, connections, group = self._world, Connections(), None
        try:
            view.at_end(connections.cut)
            if view.finished(timeout=self._join_timeout):  # the others are about to leave
                raise make(Finished, "")
            group = self._form(view, world, connections)
            self._view = JobView(view, group)
            came = self._steps.settle(self._view, self._offers, world.device, self._timeout)
            _log.info(
                "elastic job %s: view %d: rank %d of %d, at %s%s, after %.3f s",
                self._job, view.generation, view.rank, view.size, self._steps.done, came, time.monotonic() - self._paused,
            )  # fmt: skip
            with in_view(self._models):
                self._result = train(self._view)
            group.channel("end").barrier(timeout=self._timeout)
            view.finish()
            return True
        except Exception as e:
            if not self._is_over(view, e):
                raise
            _clear(e)
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
        group = self._group = view.group(timeout=self._join_timeout)
        _in_background(view, group.close)
        try:
            self._offers = [Offer.decode(o) for o in group.all_gather(self._steps.offer(world.handle).encode(), timeout=self._join_timeout)]
            self._agree(view)
            current, failed = f"{view.run}.{view.generation}/", ""
            store = self._keys.below(current)._scoped()
            _in_background(view, lambda: store._end("the view has ended"))
            try:
                world.enter(connections, store, view.generation, [o.connect for o in self._offers], self._join_timeout)
            except Exception as e:
                failed = str(e) or type(e).__name__
            outcomes = group.all_gather(failed, timeout=self._join_timeout)
            if any(outcomes):
                self._unformed(view, outcomes)
            self._before = view
            if group.rank == 0:
                self._sweep(view)
            return group
        except BaseException:
            group.close()
            raise

    def _agree(self, view: View) -> None:
        """Excludes workers with another state than rank 0, the worker that has been in the job for
        longest.
        """
        odd = [rank for rank, o in enumerate(self._offers) if o.digest != self._offers[0].digest]
        if view.rank in odd:
            raise make(
                Mismatch,
                f"muster_pg.torch: elastic job {quote(self._job)}: what is registered has other names, dtypes or shapes on rank {view.rank} than on rank 0, "
                f"worker {view.workers[0]}",
            )
        if odd:
            view.exclude(*odd)
            view.wait(self._timeout)
            raise self._error(view)

    def _unformed(self, view: View, outcomes: Sequence[str]) -> None:
        """Ends a view whose processes have not connected: without those that are new in it, if there are others."""
        if view.wait(_NEWS):
            raise self._error(view)
        said = "; ".join(f"rank {rank}, worker {view.workers[rank]}: {why}" for rank, why in enumerate(outcomes) if why)
        new = view.newcomers(self._before)
        if self._before is not None and len(new) < view.size and new:
            _log.warning("elastic job %s: view %d did not connect, and goes on without %s: %s", self._job, view.generation, ranks(new), said)
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
        if timed_out(e) or disconnected(e):
            return self._roll_call(view, e)
        return view.wait(_NEWS) or self._without(view, e)

    def _roll_call(self, view: View, e: Exception) -> bool:
        """Ends a view whose connections have failed, without the workers that do not come, and
        reports whether it has ended. If all come, the last one joins again; in each step once, since
        a collective that always fails would be taken for ever.
        """
        first, self._called = self._called != self._steps.done, self._steps.done
        try:  # one that is still in a collective comes when that has timed out
            self._group.channel("roll call").barrier(timeout=_NEWS if timed_out(e) else self._timeout + _NEWS)
        except Error as late:
            return self._without(view, late) or view.wait(_NEWS)
        if first:
            _log.warning("elastic job %s: view %d ends, and all its workers form the next one: %s", self._job, view.generation, e)
            if view.rank == view.size - 1 and self._member is not None:
                self._member.close()
                self._member = None
        return first and view.wait(self._join_timeout)

    def _without(self, view: View, e: Exception) -> bool:
        """Ends the view without the ranks for which the others have waited for as long as they may,
        and reports whether it has ended.
        """
        missing = e.missing if isinstance(e, RankError) and isinstance(e, Timeout) else []
        if not missing or view.rank in missing:
            return view.error is not None
        _log.warning("elastic job %s: view %d ends, and the next one is without %s: %s", self._job, view.generation, ranks(missing), e)
        try:
            view.exclude(*missing)
        except Error:
            pass  # it has ended
        return view.wait(self._join_timeout)


def _in_background(view: View, call: Callable[[], object]) -> None:
    """Has call made when the view ends, by a thread of its own, because it waits for the store."""
    view.at_end(lambda: threading.Thread(target=call, name="muster view", daemon=True).start())


def _clear(e: BaseException) -> None:
    """Frees what the frames of an error hold, as an autograd graph."""
    seen: Optional[BaseException] = e
    while seen is not None:
        seen.__traceback__ = None
        seen = seen.__cause__ or seen.__context__


def _bad(why: str, also: Kinds) -> Error:
    return make((*also, Invalid)[0], "muster_pg.torch: elastic job: " + why)
