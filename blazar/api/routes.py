"""The one table of routes.

What the edge dispatches on, `allow` headers and the hint at the nearest route are made from it.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from blazar.base.errors import ApiError, Code
from blazar.flow.call import Call
from blazar.flow.gateway import Gateway
from blazar.relay.client import Client

Handler = Callable[[Gateway, Call, Client], Awaitable[None]]


class Route(msgspec.Struct, frozen=True):
    """A method and a path. A pattern that ends in `{id}` takes the rest of the path, which may hold slashes.

    `public` routes answer without a secret; `always` routes answer while the gateway is draining.
    """

    method: str
    pattern: str
    handler: Handler
    public: bool = False
    always: bool = False


class RouteTable:
    """Finds the route of a request.

    Args:
        routes: in any order; a pattern without `{id}` wins over one with it.
    """

    def __init__(self, routes: Sequence[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._prefixes: list[tuple[str, dict[str, Route]]] = []
        for route in routes:
            if route.pattern.endswith("{id}"):
                prefix = route.pattern.removesuffix("{id}")
                methods = next((found for known, found in self._prefixes if known == prefix), None)
                if methods is None:
                    self._prefixes.append((prefix, methods := {}))
            else:
                methods = self._exact.setdefault(route.pattern, {})
            methods[route.method] = route

    @property
    def patterns(self) -> list[str]:
        """Every pattern once, sorted."""
        return sorted({*self._exact, *(f"{prefix}{{id}}" for prefix, _ in self._prefixes)})

    def find(self, method: str, path: str) -> Route | None:
        """The route, or None. HEAD finds what GET finds."""
        methods = self.methods(path)
        return methods.get(method) or (methods.get("GET") if method == "HEAD" else None)

    def methods(self, path: str) -> dict[str, Route]:
        """The routes on that path, by method."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        for prefix, methods in self._prefixes:
            if path.startswith(prefix) and len(path) > len(prefix):
                return methods
        return {}

    def allow(self, path: str) -> str:
        """The value of the `allow` header for that path."""
        methods = set(self.methods(path))
        if "GET" in methods:
            methods.add("HEAD")
        return ", ".join(sorted({*methods, "OPTIONS"}))

    def missing(self, method: str, path: str) -> ApiError:
        """The refusal of a request that has no route: with the method, the path and the nearest route."""
        if methods := self.methods(path):
            allowed = ", ".join(sorted(methods))
            return ApiError(Code.METHOD_NOT_ALLOWED, f"{path} does not take {method}", f"use {allowed}")
        shown = path if len(path) <= 200 else f"{path[:200]}…"
        near = difflib.get_close_matches(shown, self.patterns, n=1, cutoff=0.0)
        return ApiError(
            Code.NOT_FOUND, f"there is no route {method} {shown}", f"the nearest one is {near[0]}" if near else ""
        )
