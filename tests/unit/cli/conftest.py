"""A gateway that a test can read like a book: it answers by the last word of the question."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


class Gateway(ThreadingHTTPServer):
    """Remembers what it was asked, and which answers were left by the client."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.left = threading.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """Knows the model `m` only."""

    server: Gateway

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/v1/models/m":
            self.answer(200, b'{"id":"m"}')
        elif self.path == "/api/ps":
            self.answer(200, b"<html>", "text/html")
        else:
            self.answer(404, b'{"error":{"message":"there is no such model"}}')

    def do_POST(self) -> None:
        ask = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(ask)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        match ask["messages"][-1]["content"].split()[-1]:
            case "endless":
                self.endless()
            case "think":
                self.event(reasoning_content="let me see")
                self.event(content="thought of it")
                self.wfile.write(b"data: [DONE]\n\n")
            case "cut":
                self.event(content="half an")
            case "fail":
                self.wfile.write(b'data: {"error":{"message":"the engine died"}}\n\n')
            case word:
                self.event(content=f"{len(ask['messages'])} messages, the last: {word}")
                self.wfile.write(b"data: [DONE]\n\n")

    def endless(self) -> None:
        """Goes on until the client leaves, which the connection tells."""
        self.event(content="on and on")
        assert self.rfile.read(1) == b""
        self.server.left.set()

    def event(self, **delta: str) -> None:
        self.wfile.write(b"data: %s\n\n" % json.dumps({"choices": [{"delta": delta}]}).encode())
        self.wfile.flush()


@pytest.fixture
def book() -> Iterator[Gateway]:
    """The gateway, running."""
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
