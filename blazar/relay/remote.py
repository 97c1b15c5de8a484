"""Other gateways and services as upstreams (`[[remotes]]`): pools of members, which of them is asked, and which rests.

Entries of one name are a pool. The member with the fewest requests under way is asked; one that has failed
MAX_FAILURES times in a row rests for REST_S, unless all of them do.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from urllib.parse import urlsplit

from blazar._fast.connection import EngineConnection
from blazar.base.endpoint import Endpoint
from blazar.config.schema import RemoteConfig
from blazar.relay.pool import CONNECT_TIMEOUT_S, EnginePool

MAX_FAILURES = 3
REST_S = 30.0
PORTS = {"http": 80, "https": 443}


class RemotePool(EnginePool):
    """Connections to one remote: with its own bearer, and never the client's secret (R05)."""

    def __init__(self, config: RemoteConfig) -> None:
        parts = urlsplit(config.url)
        port = parts.port or PORTS[parts.scheme]
        super().__init__(Endpoint(host=parts.hostname or "", port=port, unix_path="", secret=config.key))
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self.path = parts.path.rstrip("/")
        bearer = f"Authorization: Bearer {config.key}\r\n" if config.key else ""
        self.head_end = (
            f" HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n{bearer}Accept: */*\r\n"
            "Content-Type: application/json\r\n"
        ).encode()

    async def _open(self) -> EngineConnection:
        loop, at = self._loop, self._endpoint
        _, connection = await loop.create_connection(
            lambda: EngineConnection(loop), at.host, at.port, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
        )
        return connection

    @property
    def _handshake_s(self) -> float | None:
        return CONNECT_TIMEOUT_S if self._tls is not None else None

    def target(self, path: str) -> str:
        """Where a path of ours is there: a base that ends in /v1 already has that part of it."""
        if self.path.endswith("/v1") and path.startswith("/v1/"):
            return self.path.removesuffix("/v1") + path
        return self.path + path


class Member:
    """One remote of a pool."""

    def __init__(self, config: RemoteConfig) -> None:
        self.config = config
        self.in_flight = 0
        self.failures = 0  # in a row
        self.rests_until = 0.0
        self._pool: RemotePool | None = None

    @property
    def pool(self) -> RemotePool:
        """Its connections, made when they are first needed: on the loop."""
        if self._pool is None:
            self._pool = RemotePool(self.config)
        return self._pool

    def on_failure(self, now: float) -> None:
        """It did not answer."""
        self.failures += 1
        if self.failures >= MAX_FAILURES:
            self.failures = 0
            self.rests_until = now + REST_S

    def on_answer(self) -> None:
        """It did."""
        self.failures = 0

    def close(self, *, now: bool = False) -> None:
        """It is not configured any more: idle connections are closed; those at work end by themselves, or now."""
        if self._pool is not None and now:
            self._pool.close()
        elif self._pool is not None:
            self._pool.retire()


class Remotes:
    """All remotes, by name.

    Args:
        entries: the `[[remotes]]` of the configuration.
    """

    def __init__(self, entries: Iterable[RemoteConfig]) -> None:
        self._pools: dict[str, list[Member]] = {}
        self.apply(entries)

    def apply(self, entries: Iterable[RemoteConfig]) -> None:
        """Go by these entries; members that stay keep their connections and their history."""
        kept = {id(member): member for members in self._pools.values() for member in members}
        pools: dict[str, list[Member]] = {}
        for entry in entries:
            same = next((member for member in kept.values() if member.config == entry), None)
            if same is not None:
                del kept[id(same)]
            pools.setdefault(entry.name, []).append(same or Member(entry))
        self._pools = pools
        for member in kept.values():
            member.close()

    def split(self, model: str) -> tuple[str, str] | None:
        """(remote, its model) of a name `remote:model`; None where that is no remote's."""
        if not self._pools:
            return None
        name, _, rest = model.partition(":")
        return (name, rest) if rest and name in self._pools else None

    def models(self) -> list[str]:
        """The names under which remotes' models are listed, sorted."""
        entries = [member.config for members in self._pools.values() for member in members]
        return sorted({f"{entry.name}:{model}" for entry in entries for model in entry.models})

    def choose(self, name: str, now: float, tried: set[int]) -> Member | None:
        """The member to ask next; None: all have been tried."""
        left = [member for member in self._pools.get(name, []) if id(member) not in tried]
        awake = [member for member in left if member.rests_until <= now]
        return min(awake or left, key=lambda member: member.in_flight, default=None)

    def close(self) -> None:
        """Close every connection."""
        for members in self._pools.values():
            for member in members:
                member.close(now=True)
