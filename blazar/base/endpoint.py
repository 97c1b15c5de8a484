"""Where an engine listens. The supervisor makes it, the relay connects to it; neither needs the other for that."""

from __future__ import annotations

import msgspec


class Endpoint(msgspec.Struct, frozen=True):
    """An engine's address and the secret that it asks for.

    `unix_path` is empty for TCP; `host` and `port` are empty and 0 for a unix socket. The secret never appears in a
    repr.
    """

    host: str
    port: int
    unix_path: str
    secret: str

    def __repr__(self) -> str:
        return f"Endpoint({self.unix_path or f'{self.host}:{self.port}'})"
