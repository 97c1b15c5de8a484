"""The gateway, as client commands see it: where it is, with which secret, and its answers as errors or text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec

from blazar.base.errors import CommandError, ConfigError
from blazar.cli.main import Context
from blazar.config.load import load_config

CONNECT_S = 5.0
ANSWER_S = 600.0  # a cold model may have to load


class Piece(msgspec.Struct, frozen=True):
    """A part of an answer: thinking, or what is said."""

    text: str
    thinking: bool


class GatewayClient:
    """A gateway's API.

    Args:
        base: its URL.
        secret: sent as bearer; "" for none.
    """

    def __init__(self, base: str, secret: str) -> None:
        self.base = base
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._http = httpx.Client(
            base_url=base, headers=headers, timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S), trust_env=False
        )

    def get(self, path: str) -> Any:
        """A JSON answer.

        Raises:
            CommandError: no gateway there, or it refuses.
        """
        return self._ask("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        """As get, with a body."""
        return self._ask("POST", path, body)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        try:
            answer = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if answer.is_error:
            raise _refusal(answer.status_code, answer.content)
        return answer.json()

    def chat(self, model: str, messages: list[dict[str, str]], max_tokens: int | None) -> Iterator[Piece]:
        """The parts of an answer as they come.

        Raises:
            CommandError: no gateway, a refusal, or an error in the middle of the answer.
        """
        body: dict[str, Any] = {"model": model, "messages": messages, "stream": True}
        if max_tokens:
            body["max_tokens"] = max_tokens
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.is_error:
                    raise _refusal(answer.status_code, answer.read())
                yield from _pieces(answer.iter_lines())
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> CommandError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return CommandError(
                f"no gateway answers at {self.base}", "start one: blazar serve (or name it with --host)"
            )
        return CommandError(f"the gateway at {self.base} broke off: {error or type(error).__name__}", "look at its log")


def find_gateway(context: Context, options: argparse.Namespace) -> GatewayClient:
    """The gateway that is meant: `--host`, `BLAZAR_HOST`, else the configured address; with the secret of `BLAZAR_KEY`,
    else of the first admin key whose secret the configuration holds.
    """
    address = options.host or context.env.get("BLAZAR_HOST", "")
    secret = context.env.get("BLAZAR_KEY", "")
    if not address or not secret:
        try:
            config = load_config(context.dirs.config_file, context.env)
        except ConfigError:
            if not address:
                raise
            config = None
        if config is not None:
            host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(config.host, config.host)
            address = address or f"{host}:{config.port}"
            secret = secret or next((key.key for key in config.keys if key.key and not key.models), "")
    base = address if "://" in address else f"http://{address}"
    return GatewayClient(base.rstrip("/"), secret)


def _pieces(lines: Iterator[str]) -> Iterator[Piece]:
    """The text in a stream of OpenAI events. Comments and empty events are passed over."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        if not data:
            continue
        event = msgspec.json.decode(data)
        if "error" in event:
            raise _refusal(502, data.encode())
        for choice in event.get("choices", ())[:1]:
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning_content"):
                yield Piece(thought, thinking=True)
            if said := delta.get("content"):
                yield Piece(said, thinking=False)
    print("\nblazar: the answer is not complete: the stream ended early", file=sys.stderr)


def _refusal(status: int, content: bytes) -> CommandError:
    try:
        error = msgspec.json.decode(content)["error"]
        return CommandError(error["message"] if isinstance(error, dict) else str(error))
    except (msgspec.DecodeError, KeyError, TypeError):
        return CommandError(f"the gateway answered with status {status}: {content[:200].decode('utf-8', 'replace')}")
