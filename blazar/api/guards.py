"""What is looked at before anything else: the Host header against DNS rebinding, and cross-origin rules.

Pure: headers in, decision out.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from blazar.base.errors import ApiError, Code

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
ALLOWED_HEADERS = (
    "authorization, content-type, x-api-key, anthropic-version, anthropic-beta, x-blazar-cache, "
    "x-blazar-cache-threshold, x-blazar-cache-ttl, x-blazar-deadline-ms, x-blazar-enforce, x-blazar-model, "
    "x-blazar-num-ctx, x-blazar-priority, x-blazar-session, x-blazar-spec"
)
EXPOSED_HEADERS = (
    b"x-blazar-trace-id, x-blazar-queue, retry-after, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)
PREFLIGHT_AGE_S = 600
MAX_SEEN = 64


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to that host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class HostGuard:
    """On a loopback bind, refuses every Host header but our own: a web page whose name has been rebound to this machine
    sends its own.

    Args:
        bound: the host that the gateway is bound to.
        allowed: further names (`allowed_hosts`).
    """

    def __init__(self, bound: str, allowed: Iterable[str]) -> None:
        self._active = is_loopback(bound)
        names = (*LOCAL_NAMES, bound, f"[{bound}]", *allowed)
        self._names = frozenset(name.lower() for name in names)
        self._seen: set[str] = set()  # with their ports, as they came: what has been let pass before

    def check(self, host: str) -> None:
        """Let it pass, or refuse it. A request without a Host (HTTP/1.0) comes from no browser.

        Raises:
            ApiError: HOST_FORBIDDEN.
        """
        if not self._active or not host:
            return
        if host in self._seen:
            return
        name = host.lower()
        if name in self._names:
            return
        bare = name.rpartition(":")[0] if not name.endswith("]") else name
        if bare not in self._names:
            raise ApiError(Code.HOST_FORBIDDEN, f"the Host header {host[:100]!r} is not one of this gateway's names")
        if len(self._seen) < MAX_SEEN:
            self._seen.add(host)


class Cors:
    """Cross-origin headers.

    Args:
        origins: `cors_origins`: empty: no origin is ever allowed; `*`: any.
    """

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origins)

    def headers(self, origin: str) -> tuple[tuple[bytes, bytes], ...]:
        """What every answer to that origin carries."""
        if not self._allows(origin):
            return ()
        if "*" in self._origins:
            return ((b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", EXPOSED_HEADERS))
        return (
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED_HEADERS),
            (b"vary", b"origin"),
        )

    def preflight(self, origin: str, allow: str) -> list[tuple[bytes, bytes]]:
        """The answer to a preflight, apart from what every answer carries."""
        if not self._allows(origin):
            return []
        return [
            (b"access-control-allow-methods", allow.encode()),
            (b"access-control-allow-headers", ALLOWED_HEADERS.encode()),
            (b"access-control-max-age", b"%d" % PREFLIGHT_AGE_S),
        ]

    def _allows(self, origin: str) -> bool:
        return bool(origin) and ("*" in self._origins or origin in self._origins)
