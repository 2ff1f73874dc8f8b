"""The scheduler: processes made of coroutines, virtual time, and a fault at any effect.

A process dies by dropping its coroutines: its port is marked dead first, so that their ``finally``
blocks cannot reach the world, as after SIGKILL.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Awaitable, Callable, Coroutine, Generator
from enum import Enum
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Fault(Enum):
    """What can happen at one effect of a process."""

    CRASH_BEFORE = "crash-before"
    CRASH_HALF = "crash-half"
    CRASH_AFTER = "crash-after"
    LOST = "lost"
    ANSWER_LOST = "answer-lost"
    REPEATED = "repeated"
    FREEZE = "freeze"
    FREEZE_REPLACED = "freeze-replaced"
    HOST_REBOOT = "host-reboot"


NETWORK = (Fault.LOST, Fault.ANSWER_LOST, Fault.REPEATED)


class Dead(BaseException):
    """Thrown into the coroutines of a killed process; never caught by the product's code."""


class Effect:
    """One effect that a task waits for."""

    __slots__ = ("name", "work")

    def __init__(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        self.name = name
        self.work = work


class Pause:
    __slots__ = ("reply", "seconds", "wake")

    def __init__(self, seconds: float, wake: str, reply: Reply | None = None) -> None:
        self.seconds = seconds
        self.wake = wake
        self.reply = reply


@coroutine
def _yield(item: Effect | Pause) -> Generator[Effect | Pause, Any, Any]:
    return (yield item)


class Spinning(Exception):
    """So much has happened at one moment that it would never end: somebody does not wait."""


SPINS = 5000
"""Steps at one moment of virtual time."""


class NoReply(Exception):
    """Nobody has answered in time."""


class Reply:
    """An answer that another process, or the world, gives later. Effects may wait for one."""

    __slots__ = ("_engine", "_error", "_value", "given", "waiting")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._value: Any = None
        self._error: Exception | None = None
        self.given = False
        self.waiting: list[tuple[Task, Pause]] = []

    def give(self, value: Any) -> None:
        self._end(value, None)

    def fail(self, error: Exception) -> None:
        self._end(None, error)

    def _end(self, value: Any, error: Exception | None) -> None:
        if self.given:
            return
        self.given, self._value, self._error = True, value, error
        for task, item in self.waiting:
            if task.parked is item:  # it has not given up meanwhile
                task.due = self._engine.now
        self.waiting.clear()

    async def within(self, seconds: float) -> Any:
        """The answer, or what it failed with. Raises :class:`NoReply`."""
        if not self.given:
            await _yield(Pause(seconds, "", self))
        if not self.given:
            raise NoReply
        if self._error is not None:
            raise self._error
        return self._value


async def sleep(seconds: float) -> None:
    """Time passes within an effect, or in a task of the world."""
    await _yield(Pause(seconds, "never"))


class Task:
    __slots__ = (
        "coro", "due", "effect", "fault", "name", "number", "parked", "process", "result", "wake", "work",
    )  # fmt: skip

    def __init__(self, process: Process, name: str, coro: Coroutine[Any, Any, None], number: int) -> None:
        self.process = process
        self.name = name
        self.coro = coro
        self.number = number
        self.effect: Effect | None = None
        self.result: tuple[bool, Any] = (True, None)
        self.due: float | None = None
        self.wake = ""
        self.work: Any = None
        """The effect that is under way, if it takes its time."""
        self.fault: Fault | None = None
        self.parked: Pause | None = None


class SimPort:
    """The port of one simulated process incarnation."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def effect(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        if self._process.dead:
            raise Dead
        result: T = await _yield(Effect(name, work))
        return result

    async def pause(self, seconds: float, wake: str) -> None:
        if self._process.dead:
            raise Dead
        await _yield(Pause(seconds, wake))

    def wake(self, key: str) -> None:
        if not self._process.dead:
            self._process.wake(key)

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if self._process.dead:
            work.close()
        else:
            self._process.spawn(name, work)

    def clock(self) -> float:
        return self._process.engine.now

    def nonce(self) -> str:
        return self._process.engine.nonce()


class Process:
    """One incarnation of a process: alive, frozen or dead."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.dead = False
        self.frozen_until = 0.0
        self.tasks: list[Task] = []
        self.pending_wakes: set[str] = set()
        self.port = SimPort(self)
        self.faultable = True
        self.on_end: list[Callable[[], None]] = []
        """For whoever is connected to it: its end closes connections."""

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self.engine.tasks_started += 1
        self.tasks.append(Task(self, name, work, self.engine.tasks_started))

    def wake(self, key: str) -> None:
        woken = [task for task in self.tasks if task.due is not None and task.wake == key]
        for task in woken:
            task.due = self.engine.now
        if not woken:
            self.pending_wakes.add(key)

    def kill(self) -> None:
        if self.dead:
            return
        self.dead = True
        for task in self.tasks:
            if task.work is not None:
                _drop_dead(task.work)
            _drop_dead(task.coro)
        self.tasks.clear()
        for connected in self.on_end:
            connected()
        self.on_end.clear()


def _drop_dead(coro: Any) -> None:
    try:
        coro.throw(Dead())
    except (Dead, StopIteration):
        pass
    except RuntimeError:
        coro.close()


def _raise(error: Exception) -> None:
    raise error


def run_now(work: Awaitable[T]) -> T:
    """Run a coroutine of the simulated world, which never waits, to its end."""
    coro: Any = work
    try:
        coro.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    coro.close()
    raise AssertionError("simulated effects do not wait")


class Engine:
    """Runs processes step by step. ``choose`` picks among what can happen now."""

    def __init__(self, seed: int | None) -> None:
        self.now = 1_000_000.0
        self.random = random.Random(0 if seed is None else seed)
        self.fair = seed is None
        self.processes: list[Process] = []
        self.tasks_started = 0
        self.nonces = 0
        self.effects = 0
        self.timers: list[tuple[float, int, Callable[[], None]]] = []
        self.trace: list[str] = []
        self.tracing = False
        self.fault_at: Callable[[int, Process, str], Fault | None] = lambda _k, _p, _n: None
        self.apply_fault: Callable[[Fault, Process, Task], None] = lambda _f, _p, _t: None
        self.half: Callable[[str, Callable[[], Awaitable[Any]]], None] = lambda _n, _w: None
        self.lost: Callable[[Process, str], Exception] = lambda _p, _n: OSError("lost")
        # A process ended by itself; the scenario decides whether that is a fault.
        self.ended: Callable[[Exception], None] = _raise
        self.after_step: Callable[[], None] = lambda: None
        self.network = self.process("network")
        """Where late copies of messages are on their way."""
        self.network.faultable = False

    def nonce(self) -> str:
        self.nonces += 1
        return f"n{self.nonces:05d}"

    def log(self, text: str) -> None:
        if self.tracing:
            self.trace.append(f"{self.now - 1_000_000:9.3f}  {text}")

    def process(self, name: str) -> Process:
        process = Process(self, name)
        self.processes.append(process)
        return process

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Let something happen in the world ``seconds`` from now."""
        self.nonces += 1
        heapq.heappush(self.timers, (self.now + seconds, self.nonces, action))

    def _ready(self) -> list[Task]:
        ready: list[Task] = []
        for process in self.processes:
            if process.frozen_until > self.now:
                continue
            ready.extend(task for task in process.tasks if task.due is None or task.due <= self.now)
        return ready

    def _next_time(self) -> float | None:
        times = [self.timers[0][0]] if self.timers else []
        for process in self.processes:
            times.extend(
                max(task.due if task.due is not None else self.now, process.frozen_until)
                for task in process.tasks
            )
        return min(times, default=None)

    def run(self, until: float, done: Callable[[], bool] | None = None) -> None:
        """Run until virtual time ``until``, or until ``done`` says so at a moment without work."""
        steps = 0
        while True:
            while self.timers and self.timers[0][0] <= self.now:
                heapq.heappop(self.timers)[2]()
            ready = self._ready()
            if ready:
                steps += 1
                if steps > SPINS:
                    raise Spinning(f"more than {SPINS} steps at one moment")
                task = ready[0] if self.fair else self.random.choice(ready)
                self._step(task)
                self.after_step()
                continue
            if done is not None and done():
                return
            moment = self._next_time()
            if moment is None or moment > until:
                self.now = max(self.now, until)
                return
            if moment > self.now:
                steps = 0
            self.now = max(self.now, moment)

    def _step(self, task: Task) -> None:
        task.parked = None
        if task.effect is not None and not self._perform(task, task.effect):
            return
        task.due = None
        succeeded, value = task.result
        task.result = (True, None)
        try:
            item = task.coro.send(value) if succeeded else task.coro.throw(value)
        except StopIteration:
            self._drop(task)
            return
        except Exception as error:
            self.log(f"{task.process.name} ends: {error!r}")
            task.process.kill()
            self.ended(error)
            return
        # To the back of the queue, so that an unseeded run serves everybody in turn.
        self._drop(task)
        if task.process.dead:
            return  # ended by what it did itself
        task.process.tasks.append(task)
        if isinstance(item, Effect):
            task.effect = item
        else:
            self._park(task, item)

    def _park(self, task: Task, item: Pause) -> None:
        """Until the time is over, somebody wakes it, or the answer is there."""
        task.parked = item
        if item.reply is not None:
            task.due, task.wake = self.now + item.seconds, ""
            item.reply.waiting.append((task, item))
        elif item.wake in task.process.pending_wakes:
            task.process.pending_wakes.discard(item.wake)
            task.due = self.now
        else:
            task.due, task.wake = self.now + item.seconds, item.wake

    @staticmethod
    def _drop(task: Task) -> None:
        if task in task.process.tasks:
            task.process.tasks.remove(task)

    def _perform(self, task: Task, effect: Effect) -> bool:
        """Do the effect a task waits for, or go on with it; false if the task cannot go on now."""
        if task.work is None and not self._begin(task, effect):
            return False
        if task.work is not None:
            try:
                self._park(task, task.work.send(None))
            except StopIteration as stop:
                task.result = (True, stop.value)
            except Exception as error:
                task.result = (False, error)
            else:
                return False
            task.work = None
        process, fault = task.process, task.fault
        task.effect = task.fault = None
        if fault is Fault.CRASH_AFTER:
            self.apply_fault(fault, process, task)
            return False
        if fault is Fault.ANSWER_LOST:
            task.result = (False, self.lost(process, effect.name))
        if fault is Fault.REPEATED:
            delay = 3.0 if self.fair else self.random.choice((0.1, 3.0, 40.0))
            self.at(delay, lambda: self._repeat(effect))
        return not process.dead

    def _begin(self, task: Task, effect: Effect) -> bool:
        """False if it is hit by a fault before anything is done."""
        process = task.process
        if process.faultable:
            self.effects += 1
            fault = self.fault_at(self.effects, process, effect.name)
        else:
            fault = None
        if fault is None:
            self.log(f"{process.name}: {effect.name}")
        else:
            self.log(f"{process.name}: {effect.name}  *** {fault.value}")
        if fault in (Fault.CRASH_BEFORE, Fault.HOST_REBOOT, Fault.FREEZE, Fault.FREEZE_REPLACED):
            self.apply_fault(fault, process, task)
            return False
        if fault is Fault.CRASH_HALF:
            self.half(effect.name, effect.work)
            self.apply_fault(fault, process, task)
            return False
        task.fault = fault
        if fault is Fault.LOST:
            task.result = (False, self.lost(process, effect.name))
            return True
        task.work = effect.work()
        return True

    def _repeat(self, effect: Effect) -> None:
        """A late copy of a message arrives; whoever sent it does not hear the answer."""
        self.log(f"late copy: {effect.name}")
        self.network.spawn("late copy", self._arrive(effect))

    async def _arrive(self, effect: Effect) -> None:
        try:
            await effect.work()
        except Exception as error:
            self.log(f"late copy refused: {type(error).__name__}")
