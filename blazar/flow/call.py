"""One HTTP request as the flow sees it: what was asked, by whom."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blazar.admission.keys import ANONYMOUS, Key
from blazar.base.errors import ApiError, Code


class Call:
    """A request's head.

    Attributes:
        method: as sent; the edge serves HEAD as GET.
        path: decoded path.
        headers: by lower-case name; of a repeated one the last.
        key: who asks, once the edge knows.
        route: the pattern of the route, once it is known; logs and metrics use it, never the path.
        model: the resolved model, once it is known.
        trace_id: names the request in logs and in the answer.
    """

    __slots__ = ("_scope", "headers", "key", "method", "model", "path", "route", "trace_id")

    def __init__(self, scope: Mapping[str, Any], trace_id: str) -> None:
        self._scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.trace_id = trace_id
        self.key: Key = ANONYMOUS
        self.route = ""
        self.model = ""

    def header(self, name: bytes) -> str:
        """A header's value, "" where it is missing."""
        value = self.headers.get(name)
        return value.decode("latin-1") if value else ""

    @property
    def query(self) -> str:
        """The query string, undecoded."""
        query: bytes = self._scope["query_string"]
        return query.decode("latin-1")

    @property
    def content_length(self) -> int | None:
        """The announced length of the body; None where it is chunked or absent.

        Raises:
            ApiError: BAD_REQUEST, it is not a number.
        """
        text = self.headers.get(b"content-length")
        if text is None:
            return None
        if not text.isdigit():
            raise ApiError(Code.BAD_REQUEST, f"content-length is not a number: {text[:40]!r}")
        return int(text)

    @property
    def has_body(self) -> bool:
        """Whether the client sends a body at all."""
        return b"transfer-encoding" in self.headers or bool(self.content_length)
