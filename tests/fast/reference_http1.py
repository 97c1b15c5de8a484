"""The readable twin of `_fast/http1.pyx`: the same answers, byte by byte, with no thought of speed."""

from __future__ import annotations


class ReferenceError(Exception):
    """What ProtocolError is to the kernel."""


def parse(stream: bytes, *, head_request: bool = False) -> tuple[int, list[tuple[bytes, bytes]], bytes, bool, bool]:
    """A whole connection's worth of one response: (status, headers, body, complete, keep_alive)."""
    while True:
        head, stream = _split_head(stream)
        if head is None:
            return 0, [], b"", False, False
        status, headers, keep_alive = _parse_head(head)
        if status >= 200:
            break
    values = dict(headers)
    length = values.get(b"content-length")
    if head_request or status in (204, 304):
        return _ended(status, headers, b"", stream, keep_alive)
    if b"transfer-encoding" in values:
        keep_alive = keep_alive and length is None
        body, rest = _unchunk(stream)
        return (
            (status, headers, body, False, keep_alive)
            if rest is None
            else _ended(status, headers, body, rest, keep_alive)
        )
    if length is None:
        return status, headers, stream, False, False
    size = int(length)
    if len(stream) < size:
        return status, headers, stream, False, keep_alive
    return _ended(status, headers, stream[:size], stream[size:], keep_alive)


def _ended(
    status: int, headers: list[tuple[bytes, bytes]], body: bytes, rest: bytes, keep_alive: bool
) -> tuple[int, list[tuple[bytes, bytes]], bytes, bool, bool]:
    if rest:
        raise ReferenceError("more than a response")
    return status, headers, body, True, keep_alive


def _split_head(stream: bytes) -> tuple[list[bytes] | None, bytes]:
    lines: list[bytes] = []
    at = 0
    while (end := stream.find(b"\n", at)) >= 0:
        line = stream[at:end].removesuffix(b"\r")
        at = end + 1
        if not line and lines:
            return lines, stream[at:]
        lines.append(line)
    return None, stream


def _parse_head(lines: list[bytes]) -> tuple[int, list[tuple[bytes, bytes]], bool]:
    status = int(lines[0][9:12])
    headers = []
    keep_alive = lines[0].startswith(b"HTTP/1.1")
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        headers.append((name.lower(), value.strip(b" \t")))
        if name.lower() == b"connection":
            if b"close" in value.lower():
                keep_alive = False
            elif b"keep-alive" in value.lower():
                keep_alive = True
    return status, headers, keep_alive


def _unchunk(stream: bytes) -> tuple[bytes, bytes | None]:
    """The body, and what follows it; None where the end has not come."""
    body = b""
    while True:
        line, newline, rest = stream.partition(b"\n")
        if not newline:
            return body, None
        size = int(line.partition(b";")[0].strip(), 16)
        if size == 0:
            while rest:
                line, newline, rest = rest.partition(b"\n")
                if not newline:
                    return body, None
                if line in (b"", b"\r"):
                    return body, rest
            return body, None
        body += rest[:size]
        if len(rest) < size + 1 or b"\n" not in rest[size:]:
            return body, None
        stream = rest[size:].partition(b"\n")[2]
