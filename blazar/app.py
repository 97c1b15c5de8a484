"""The composition root: builds each object once, and owns the order of starting and stopping.

    start: port (B23) → data directory → store → index, supervisor, watchdog → server → "listening on …"
    stop:  admit no more (503) → drain, at most DRAIN_S → end what is left in-band → server → engines → store (T12)

Blazar owns SIGINT and SIGTERM (stop), SIGHUP (read the configuration again) and SIGUSR1 (drain: admit no more).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvloop

from blazar.admission.keys import KeyRing
from blazar.api.edge import Edge
from blazar.api.guards import Cors, HostGuard, is_loopback
from blazar.api.server import EdgeServer, bind, wait_until_answering
from blazar.base.clock import SystemClock
from blazar.base.dirs import Dirs
from blazar.base.errors import ApiError, Code, CommandError
from blazar.config.schema import Config
from blazar.flow.gates import Gates
from blazar.flow.gateway import Gateway
from blazar.flow.settings import LoadConfig, Settings
from blazar.flow.singleflight import Flights
from blazar.launch import Launcher
from blazar.models.index import ModelIndex
from blazar.observe.access import AccessLog
from blazar.observe.ledger import Ledger
from blazar.observe.metrics import Metrics
from blazar.relay.pool import EnginePool
from blazar.relay.remote import Remotes
from blazar.relay.stalls import StallLimits, StallSweep
from blazar.store.store import Store
from blazar.supervisor import Supervisor

log = logging.getLogger("blazar")

DRAIN_S = 10.0  # T12
LAST_WORDS_S = 2.0  # for streams to take the in-band error once the drain is over
POLL_S = 0.02
TIDY_S = 60.0
FILE_LIMIT = 65536  # two for each of 8192 streams, and plenty for the rest
COLLECT_AFTER = (20_000, 20, 50)  # objects, then collections of the younger generation; CPython's own: 700, 10, 10


def serve(load: LoadConfig, dirs: Dirs, *, keys_from_environment: bool = False) -> int:
    """Run the gateway until it is told to stop.

    Args:
        load: reads the configuration, with the command line's overrides; called again when it changes.
        dirs: where everything is.
        keys_from_environment: whether keys come from BLAZAR_KEYS, and so cannot be changed in the file.

    Returns:
        The exit status.

    Raises:
        BlazarError: it cannot start.
    """
    config = load()
    listener = bind(config.host, config.port)
    raise_file_limit()
    with contextlib.closing(listener), claim(dirs):
        set_up_logging(config.log_level)
        with contextlib.closing(Store.open(dirs.db)) as store:
            app = App(load, config, dirs, store, listener)
            app.gateway.keys_from_environment = keys_from_environment
            return uvloop.run(app.run())


@contextlib.contextmanager
def claim(dirs: Dirs) -> Iterator[None]:
    """Hold the data directory: two gateways on one would sweep each other's engines.

    Raises:
        CommandError: another gateway has it.
    """
    dirs.ensure()
    path = dirs.run / "gateway.lock"
    with path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "?"
            raise CommandError(
                f"another gateway (pid {holder}) uses the data directory {dirs.data}",
                "stop it, or set BLAZAR_DATA_DIR to another directory",
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def raise_file_limit() -> None:
    """As many descriptors as the system lets us have: a stream takes two, and the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILE_LIMIT if hard == resource.RLIM_INFINITY else min(FILE_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def set_up_logging(level: str) -> None:
    """Everything to stderr; stdout carries the one line that says where we listen."""
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # one line for every health probe otherwise


class App:
    """One running gateway."""

    def __init__(self, load: LoadConfig, config: Config, dirs: Dirs, store: Store, listener: socket.socket) -> None:
        self._listener = listener
        clock = SystemClock()
        self._launcher = Launcher(store, dirs, config)
        metrics = Metrics()
        supervisor: Supervisor[EnginePool] = Supervisor(dirs=dirs, plan=self._launcher.plan, connect=EnginePool)
        self.gateway = Gateway(
            config=config,
            keys=KeyRing(config.keys),
            models=ModelIndex(store),
            supervisor=supervisor,
            stalls=StallSweep(stall_limits(config), clock),
            access=AccessLog(dirs.log / "access.jsonl" if config.access_log else None),
            ledger=Ledger(store, clock),
            metrics=metrics,
            gates=Gates(clock, metrics.waits, supervisor.is_loading),
            flights=Flights(),
            settings=Settings(dirs.config_file, load, config, self._apply),
            remotes=Remotes(config.remotes),
        )
        self._edge = Edge(self.gateway, HostGuard(config.host, config.allowed_hosts), Cors(config.cors_origins))
        self._server = EdgeServer(self._edge, listener, config.max_streams)
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Start, serve until a signal, stop; returns the exit status."""
        gateway = self.gateway
        set_up_logging(gateway.config.log_level)  # granian's constructor has reset the handlers
        self._handle_signals()
        await gateway.supervisor.start()
        await gateway.models.refresh()
        await asyncio.to_thread(gateway.ledger.load)
        jobs = (
            gateway.models.run(),
            gateway.stalls.run(),
            gateway.access.run(),
            gateway.ledger.run(),
            gateway.settings.watch(),
            self._tidy(),
        )
        background = [asyncio.create_task(job) for job in jobs]
        server = asyncio.create_task(self._server.serve())
        try:
            await wait_until_answering(self._listener)
            settle_collector()
            self._announce()
            gateway.not_ready = ""
            stopped = asyncio.create_task(self._stop.wait())
            await asyncio.wait((stopped, server, *background), return_when=asyncio.FIRST_COMPLETED)
            broken = [task for task in (server, *background) if task.done()]
            for task in broken:  # none of them ends by itself: without one the gateway is not whole
                log.error("a part of the gateway has ended by itself: %s", task, exc_info=task.exception())
            stopped.cancel()
            await self._drain()
            return 1 if broken else 0
        finally:
            self._server.stop()  # type: ignore[no-untyped-call]
            await gateway.supervisor.stop()
            gateway.remotes.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(server, LAST_WORDS_S)
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    def _announce(self) -> None:
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"listening on http://{shown}:{port}", flush=True)
        if self.gateway.keys.open and not is_loopback(self.gateway.config.host):
            log.warning(
                "the gateway is OPEN to everyone who can reach %s: add a [[keys]] entry to config.toml",
                self.gateway.config.host,
            )

    async def _drain(self) -> None:
        """T12: refuse new requests, wait for those under way, end what is left with the error in its own stream."""
        gateway = self.gateway
        gateway.draining = True
        live = gateway.stalls.live
        log.info("stopping: %d requests under way, drained for at most %g s", len(live), DRAIN_S)
        if not await wait_for(lambda: not live, DRAIN_S):
            error = ApiError(Code.UNAVAILABLE, "the gateway is shutting down", "send the request again")
            for client in tuple(live):
                client.interrupt(error)
            await wait_for(lambda: not live, LAST_WORDS_S)

    # ---- signals ----

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_reload)
        loop.add_signal_handler(signal.SIGUSR1, self._on_drain)

    def _on_stop(self, number: signal.Signals) -> None:
        if self._stop.is_set():  # the second one: at once
            self.gateway.supervisor.kill()
            os._exit(128 + number)
        self._stop.set()

    def _on_drain(self) -> None:
        self.gateway.draining = True
        log.info("draining: %d requests under way, no more are admitted", len(self.gateway.stalls.live))

    def _on_reload(self) -> None:
        self._reloading = asyncio.create_task(self.gateway.settings.reload())

    def _apply(self, config: Config) -> None:
        """Go by another configuration from now on."""
        gateway, old = self.gateway, self.gateway.config
        gateway.config = config
        gateway.keys = KeyRing(config.keys)
        gateway.stalls.limits = stall_limits(config)
        gateway.remotes.apply(config.remotes)
        self._launcher.config = config
        self._edge.host_guard = HostGuard(old.host, config.allowed_hosts)
        self._edge.cors = Cors(config.cors_origins)
        logging.getLogger().setLevel(config.log_level.upper())
        fixed = [
            name
            for name in ("host", "port", "max_streams", "access_log")
            if getattr(old, name) != getattr(config, name)
        ]
        log.info("configuration reloaded%s", f"; only a restart changes {', '.join(fixed)}" if fixed else "")

    async def _tidy(self) -> None:
        """Forget what belonged to models and keys that are gone."""
        gateway = self.gateway
        while True:
            await asyncio.sleep(TIDY_S)
            gateway.gates.forget(set(gateway.models.rows))
            gateway.ledger.keep_only({key.name for key in gateway.keys.keys})


def stall_limits(config: Config) -> StallLimits:
    """The limits of a request's stages, from the configuration."""
    return StallLimits(config.body_timeout_secs, config.child_header_timeout_secs, config.stream_idle_timeout_secs)


def settle_collector() -> None:
    """Keep the garbage collector from holding the loop: what a start has made lives as long as the process and is not
    looked at again, and young objects, which nearly all die by their reference count, are looked at less often.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition came true in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not condition():
        if loop.time() > end:
            return False
        await asyncio.sleep(POLL_S)
    return True
