"""The life of one child, from its start to its end: one task, which alone moves its state.

Others ask (`stop`), lease and wait. Whether to start or to stop is decided here, from the state as it is, never from a
look at it that may be stale; between a decision and what it causes nothing is awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import httpx
import msgspec

from blazar.base.endpoint import Endpoint
from blazar.base.errors import ApiError, Code, CommandError
from blazar.base.records import EngineKind
from blazar.supervisor.causes import CauseKind, CrashCause, diagnose
from blazar.supervisor.keeper import Keeper
from blazar.supervisor.machine import LEASABLE, Event, State, transition
from blazar.supervisor.process import EngineProcess

log = logging.getLogger("blazar.engines")

HEALTH_FIRST_S = 0.005  # a tiny model is up within 15 ms
HEALTH_LAST_S = 0.1
HEALTH_TIMEOUT_S = 5.0
SECOND_TERM_S = 0.3  # llama-server, told once while a stream runs, hangs; told twice it ends at once
KILL_S = 2.0
LOAD_CAP = 10  # load timeouts that a load may take which prints something now and then
TELLS_PROPS = frozenset((EngineKind.LLAMACPP,))
REAP_S = 2.0  # from SIGKILL to the end, which only the kernel can delay
DATA_REMEDY = "check that the data directory is writable and has space, then start the gateway again"


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """All that it takes to start a model's engine."""

    model: str
    kind: EngineKind
    tag: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    endpoint: Endpoint
    load_timeout_s: float
    slots: int
    ctx: int
    on_abort: str


class ChildStats(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown of a child."""

    model: str
    kind: str
    tag: str
    state: str
    pid: int
    port: int
    slots: int
    ctx: int
    in_flight: int
    restarts: int


class EngineClient(Protocol):
    """What the supervisor asks of whoever speaks to engines."""

    def close(self) -> None: ...


C = TypeVar("C", bound=EngineClient)


class Lease(Generic[C]):
    """The right to one request on a ready child. Release it when the engine is free of the request."""

    __slots__ = ("_released", "child", "client")

    def __init__(self, child: Child[C], client: C) -> None:
        self.child = child
        self.client = client
        self._released = False

    def release(self) -> None:
        """Give it back; a second time does nothing."""
        if not self._released:
            self._released = True
            self.child.on_release()


class Child(Generic[C]):
    """One engine process for one model.

    Args:
        plan: how to start it.
        connect: makes the client once it is ready; called on the loop.
        keeper: told of the process.
        mark: the gateway's mark in its environment.
        log_dir: where its output is written.

    Attributes:
        state: see machine.
        in_flight: leases that are out.
        slots: requests that it runs at once, and `ctx`, the tokens of each slot's context: as planned, and once it is
            ready as it says itself.
        failure: why it never became ready.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        *,
        connect: Callable[[Endpoint], C],
        keeper: Keeper,
        mark: str,
        log_dir: Path,
        restarts: int,
    ) -> None:
        self.plan = plan
        self.state = State.STARTING
        self.in_flight = 0
        self.restarts = restarts
        self.slots = plan.slots
        self.ctx = plan.ctx
        self.failure: ApiError | None = None
        self._connect = connect
        self._keeper = keeper
        self._mark = mark
        self._log_path = log_dir / f"{plan.model.replace('/', '_')}.log"
        self._client: C | None = None
        self._process: EngineProcess | None = None
        self._cause: CrashCause | None = None
        self._settled = asyncio.Event()  # ready, or never to be
        self._gone = asyncio.Event()
        self._stop = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()  # the drain's end may have come nearer
        self._drain_until = 0.0  # loop time
        self._task = asyncio.create_task(self._live())

    # ---- for others ----

    def try_lease(self) -> Lease[C] | None:
        """A lease if it is ready, at once."""
        if self.state not in LEASABLE or self._client is None:
            return None
        if self.in_flight == 0:
            self._move(Event.LEASE)
            self._idle.clear()
        self.in_flight += 1
        return Lease(self, self._client)

    def on_release(self) -> None:
        """A lease has come back."""
        self.in_flight -= 1
        if self.in_flight == 0:
            self._move(Event.IDLE)
            self._idle.set()

    async def wait_settled(self) -> None:
        """Until it is ready, or will never be."""
        await self._settled.wait()

    async def wait_gone(self, timeout_s: float | None = None) -> CrashCause | None:
        """Until it has ended; the cause, or None if it has not after that many seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._gone.wait()
        except TimeoutError:
            return None
        return self._cause

    @property
    def lost_its_port(self) -> bool:
        """Whether somebody else took its port before it could: another start, with another port, may succeed."""
        return self._client is None and self._cause is not None and self._cause.kind is CauseKind.PORT

    def stop(self, *, drain_s: float) -> None:
        """Ask it to end, when its requests have ended or the time is over.

        The shortest time of several calls counts.
        """
        until = asyncio.get_running_loop().time() + drain_s
        self._drain_until = min(self._drain_until, until) if self._stop.is_set() else until
        self._stop.set()
        self._hurry.set()

    def kill(self) -> None:
        """End it now, without waiting."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)

    def stats(self) -> ChildStats:
        """What is shown of it."""
        plan = self.plan
        return ChildStats(
            model=plan.model,
            kind=plan.kind.value,
            tag=plan.tag,
            state=self.state.value,
            pid=self._process.pid if self._process else 0,
            port=plan.endpoint.port,
            slots=self.slots,
            ctx=self.ctx,
            in_flight=self.in_flight,
            restarts=self.restarts,
        )

    # ---- its life ----

    def _move(self, event: Event) -> None:
        self.state = transition(self.state, event)

    async def _live(self) -> None:
        """Start, serve, end. Whatever happens, it ends in GONE and wakes everybody."""
        try:
            process = self._spawn()
            await self._load(process)
            if self.state is State.READY:
                await _first(process.exited, self._stop)
            await self._end(process)
        except CommandError as error:
            self._fail_start(error.message, error.remedy)
        except OSError as error:  # its log, its record: the data directory is not what it was
            self._fail_start(f"cannot start {self.plan.tag} for {self.plan.model}: {error}", DATA_REMEDY)
        finally:
            self.kill()  # nothing to do, unless something here has failed
            self._leave()

    def _fail_start(self, message: str, remedy: str) -> None:
        log.error("%s: %s", self.plan.model, message)
        self.failure = ApiError(Code.ENGINE_CRASHED, message, remedy)
        self._cause = CrashCause(CauseKind.EXIT, message, 127)

    def _leave(self) -> None:
        """GONE, and nobody waits any more."""
        if self._cause is None:  # a bug here, or the loop is being torn down: the task has the exception
            self.failure = self.failure or ApiError(Code.INTERNAL, f"the supervision of {self.plan.model} broke off")
            self._cause = CrashCause(CauseKind.SIGNAL, "ended because its supervision broke off", -signal.SIGKILL)
        if self.state is not State.GONE:
            self._move(Event.EXIT)
        self._settled.set()
        self._gone.set()
        if self.plan.endpoint.unix_path:
            with contextlib.suppress(OSError):  # a leftover socket does no harm: no two have the same name
                Path(self.plan.endpoint.unix_path).unlink(missing_ok=True)
        if self._client is not None:
            self._client.close()

    def _spawn(self) -> EngineProcess:
        process = self._process = EngineProcess(self.plan.argv, self.plan.env, self._mark, self._log_path)
        self._keeper.keep(process, tag=self.plan.tag, model=self.plan.model)
        log.info("%s: starting %s (pid %d)", self.plan.model, self.plan.tag, process.pid)
        return process

    async def _load(self, process: EngineProcess) -> None:
        """Until it is healthy, has ended, makes no progress for its load timeout (T08), or is not wanted any more."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        health = asyncio.create_task(wait_healthy(self.plan.endpoint, asks_props=self.plan.kind in TELLS_PROPS))
        try:
            while not health.done() and not process.exited.done() and not self._stop.is_set():
                patience_s = self.plan.load_timeout_s
                end = min(max(began, process.output_at) + patience_s, began + LOAD_CAP * patience_s)
                left = end - loop.time()
                if left <= 0:
                    self.failure = self._timeout_error(process, loop.time() - began)
                    return
                await _first(health, process.exited, self._stop, timeout_s=left)
            if health.done() and not process.exited.done() and not self._stop.is_set():
                if (props := health.result()) is not None:
                    self.slots = props.total_slots or self.slots
                    self.ctx = props.default_generation_settings.n_ctx or self.ctx
                self._client = self._connect(self.plan.endpoint)
                self._move(Event.HEALTHY)
                self._settled.set()
                log.info("%s: ready after %.2f s", self.plan.model, loop.time() - began)
        finally:
            health.cancel()

    def _timeout_error(self, process: EngineProcess, seconds: float) -> ApiError:
        last = (self._words(process).strip().splitlines() or ["it printed nothing"])[-1]
        return ApiError(
            Code.MODEL_LOAD_TIMEOUT,
            f"the engine {self.plan.tag} did not load {self.plan.model} in {seconds:.0f} s: it has "
            f"{self.plan.load_timeout_s:g} s from each line that it prints, {LOAD_CAP} times that in all; "
            f"its last line: {last[:200]}",
        )

    async def _end(self, process: EngineProcess) -> None:
        """See the process to its end: by itself, or by the stop protocol."""
        asked = self._stop.is_set() or self.failure is not None
        if not process.exited.done():
            self._move(Event.STOP)
            await self._stop_process(process)
        was_loading = self._client is None
        if process.exited.done():
            cause = diagnose(process.exited.result(), self._words(process), stopped=asked, loading=was_loading)
        else:  # the kernel does not let go of it, as a broken GPU driver may; the watchdog still has it on its list
            cause = CrashCause(CauseKind.SIGNAL, f"still there {REAP_S:g} s after signal 9, SIGKILL", -signal.SIGKILL)
            log.error("%s: pid %d is %s", self.plan.model, process.pid, cause.words)
        self._cause = cause
        self._move(Event.EXIT)
        if asked or cause.clean:
            log.info("%s: ended (%s)", self.plan.model, cause.words)
        else:
            log.error("%s: engine crashed (%s): %s", self.plan.model, cause.kind, cause.words)
        if was_loading and self.failure is None:
            self.failure = self._start_error(cause, asked=asked)

    def _words(self, process: EngineProcess) -> str:
        """The end of what it printed, without its secret."""
        secret = self.plan.endpoint.secret
        return process.words().replace(secret, "[secret]") if secret else process.words()

    def _start_error(self, cause: CrashCause, *, asked: bool) -> ApiError:
        if asked:
            return ApiError(Code.UNAVAILABLE, f"{self.plan.model} was unloaded while it was loading", retry_after_s=1)
        return ApiError(
            Code.ENGINE_CRASHED,
            f"the engine {self.plan.tag} died while loading {self.plan.model} ({cause.kind}): {cause.words}",
            f"its output is in log/engines/{self._log_path.name}",
        )

    async def _stop_process(self, process: EngineProcess) -> None:
        """Drain, TERM, TERM again, KILL: each step only if the one before was not enough."""
        await self._drain(process)
        if self._client is not None:
            self._client.close()
        for number, patience_s in ((signal.SIGTERM, SECOND_TERM_S), (signal.SIGTERM, KILL_S - SECOND_TERM_S)):
            process.signal(number)
            await _first(process.exited, timeout_s=patience_s)
        if not process.exited.done():
            log.error(
                "%s: engine crashed (signal 9): it did not end within %g s of being told to", self.plan.model, KILL_S
            )
            process.signal(signal.SIGKILL)
            await _first(process.exited, timeout_s=REAP_S)

    async def _drain(self, process: EngineProcess) -> None:
        """Until it is idle, dead, or the time is over, which a later call of `stop` may shorten."""
        loop = asyncio.get_running_loop()
        while self.in_flight and not process.exited.done() and (left := self._drain_until - loop.time()) > 0:
            self._hurry.clear()
            await _first(self._idle, process.exited, self._hurry, timeout_s=left)


class SlotSettings(msgspec.Struct, frozen=True):
    """Of an engine's answer to /props: what each slot has. 0: it does not say."""

    n_ctx: int = 0


class Props(msgspec.Struct, frozen=True):
    """What llama.cpp's server says of itself. 0: it does not say."""

    total_slots: int = 0
    default_generation_settings: SlotSettings = SlotSettings()


async def wait_healthy(endpoint: Endpoint, *, asks_props: bool) -> Props | None:
    """Ask the engine's health route until it says yes; then what it is like, if it is of a kind that tells."""
    transport = httpx.AsyncHTTPTransport(uds=endpoint.unix_path or None, verify=False)
    base = f"http://{endpoint.host or 'localhost'}:{endpoint.port}" if endpoint.port else "http://localhost"
    pause_s = HEALTH_FIRST_S
    async with httpx.AsyncClient(transport=transport, base_url=base, timeout=HEALTH_TIMEOUT_S) as client:
        while True:
            try:
                if (await client.get("/health")).status_code == httpx.codes.OK:
                    break
            except httpx.HTTPError:
                pass  # it does not listen yet, or it is not itself yet
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, HEALTH_LAST_S)
        if not asks_props:
            return None
        try:
            answer = await client.get("/props", headers={"Authorization": f"Bearer {endpoint.secret}"})
            return msgspec.json.decode(answer.content, type=Props)
        except (httpx.HTTPError, msgspec.DecodeError):
            return None  # an older one: what was planned stands


async def _first(*things: asyncio.Event | asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Until one of these has happened, or the time is over. None of them is cancelled."""
    own = [asyncio.ensure_future(thing.wait()) for thing in things if isinstance(thing, asyncio.Event)]
    futures: list[asyncio.Future[Any]] = [t for t in things if not isinstance(t, asyncio.Event)]
    try:
        await asyncio.wait({*own, *futures}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()
