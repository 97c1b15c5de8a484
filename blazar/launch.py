"""From a model's name to what starts its engine: rows from the store, a compiled profile, an address, a secret.

Part of the composition root: it is the one place that knows the store, the engines' command lines and the supervisor's
plan at once.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from pathlib import Path

from blazar.base.dirs import Dirs
from blazar.base.endpoint import Endpoint
from blazar.base.errors import ApiError, Code, UsageError
from blazar.base.records import EngineKind
from blazar.config.schema import Config
from blazar.engines.lanes import pick_engine
from blazar.engines.profile import argv, compile_profile
from blazar.store.store import Store
from blazar.supervisor import LaunchPlan

UNIX_PATH_BYTES = 100  # sun_path holds 104 on macOS, 108 on Linux, with a final zero
LOAD_TIMEOUT_S = {EngineKind.SGLANG: 600.0, EngineKind.MLX: 600.0}  # T08: the others 180 s
LOAD_TIMEOUT_DEFAULT_S = 180.0


class Launcher:
    """Makes launch plans.

    Args:
        store: engines and models.
        dirs: where sockets and models are.
        config: replaced when the configuration is read again; running engines keep what they started with.
    """

    def __init__(self, store: Store, dirs: Dirs, config: Config) -> None:
        self._store = store
        self._dirs = dirs
        self.config = config

    async def plan(self, name: str) -> LaunchPlan:
        """The plan for a model.

        Raises:
            ApiError: it has gone, no installed engine serves it, or its overrides do not fit the engine (V17).
        """
        try:
            return await asyncio.to_thread(self._plan, name, self.config)
        except UsageError as error:
            raise ApiError(Code.MODEL_UNSUPPORTED_ENGINE, error.message, error.remedy) from error

    def _plan(self, name: str, config: Config) -> LaunchPlan:
        model = self._store.model(name)
        if model is None:
            raise ApiError(Code.MODEL_NOT_FOUND, f"model {name!r} has been removed")
        engine = pick_engine(self._store, model, config)
        profile = compile_profile(model=model, engine=engine, config=config, cpu_count=os.cpu_count() or 1)
        endpoint = self._endpoint(config.child_transport)
        override = config.model_overrides.get(name)
        return LaunchPlan(
            model=name,
            kind=engine.kind,
            tag=engine.tag,
            argv=argv(profile, Path(engine.binary), endpoint),
            env={**config.engine_env, **profile.env, "LLAMA_API_KEY": endpoint.secret},
            endpoint=endpoint,
            load_timeout_s=config.model_load_timeout_secs or LOAD_TIMEOUT_S.get(engine.kind, LOAD_TIMEOUT_DEFAULT_S),
            slots=profile.slots,
            ctx=profile.ctx,
            on_abort=(override.on_abort if override else None) or config.on_abort,
        )

    def _endpoint(self, transport: str) -> Endpoint:
        """A fresh address that nobody else knows the secret of.

        A unix socket whose path would be too long becomes TCP.
        """
        secret = secrets.token_urlsafe(32)
        path = str(self._dirs.run / f"{secrets.token_hex(6)}.sock")
        if transport == "unix" and len(path.encode()) <= UNIX_PATH_BYTES:
            return Endpoint(host="", port=0, unix_path=path, secret=secret)
        with socket.create_server(("127.0.0.1", 0)) as free:
            return Endpoint(host="127.0.0.1", port=free.getsockname()[1], unix_path="", secret=secret)
