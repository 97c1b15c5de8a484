"""The gateway, as client commands see it: where it is, with which secret, and its answers as records or errors."""

from __future__ import annotations

import argparse
from collections.abc import Generator
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from blazar.base.errors import CommandError, ConfigError, UsageError
from blazar.cli.events import Message, Piece, pieces, words_of
from blazar.cli.main import Context
from blazar.config.load import load_config
from blazar.config.schema import DEFAULTS, Config

CONNECT_S = 5.0
ASK_S = 30.0  # an eviction drains for 10 s, and its engine takes some to end
ANSWER_S = 630.0  # a cold model may load for 600 s; the gateway itself ends what takes longer

T = TypeVar("T")


class ChatAsk(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Body of a chat request."""

    model: str
    messages: tuple[Message, ...]
    stream: bool
    max_tokens: int | None = None
    temperature: float | None = None


class GatewayClient:
    """A gateway's API. Close it, or use it in a `with`.

    Args:
        base: its URL.
        secret: sent as bearer; "" for none.
    """

    def __init__(self, base: str, secret: str) -> None:
        self.base = base
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self._http = httpx.Client(
            base_url=base, headers=headers, timeout=httpx.Timeout(ASK_S, connect=CONNECT_S), trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: msgspec.Struct | None = None, *, timeout_s: float = ASK_S) -> bytes:
        """The body of an answer.

        Raises:
            CommandError: no gateway there, or it refuses.
        """
        try:
            answer = self._http.request(
                method,
                path,
                content=None if body is None else msgspec.json.encode(body),
                headers={"content-type": "application/json"} if body is not None else {},
                timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s)),
            )
        except httpx.HTTPError as error:
            raise self._broken(error) from error
        if answer.is_error:
            raise refusal(answer.status_code, answer.content)
        return answer.content

    def read(self, content: bytes, kind: type[T]) -> T:
        """An answer's body as a record.

        Raises:
            CommandError: it is none.
        """
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.DecodeError as error:
            raise CommandError(
                f"{self.base} gave an answer that no Blazar gateway gives ({error})", "check --host and BLAZAR_HOST"
            ) from error

    def chat(self, ask: ChatAsk) -> Generator[Piece, None, None]:
        """The parts of an answer as they come. Closing the iterator closes the connection, and ends the answer.

        Raises:
            CommandError: no gateway, a refusal, or an answer that ends before it is complete.
        """
        content, headers = msgspec.json.encode(ask), {"content-type": "application/json"}
        timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
        try:
            with self._http.stream(
                "POST", "/v1/chat/completions", content=content, headers=headers, timeout=timeout
            ) as answer:
                if answer.is_error:
                    raise refusal(answer.status_code, answer.read())
                yield from pieces(answer.iter_bytes())
        except httpx.HTTPError as error:
            raise self._broken(error) from error

    def _broken(self, error: httpx.HTTPError) -> CommandError:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return CommandError(
                f"no gateway answers at {self.base}", "start one: blazar serve (or name another with --host)"
            )
        if isinstance(error, httpx.TimeoutException):
            return CommandError(f"the gateway at {self.base} did not answer in time", "look at its log")
        return CommandError(f"the gateway at {self.base} broke off: {error or type(error).__name__}", "look at its log")


def find_gateway(context: Context, options: argparse.Namespace) -> GatewayClient:
    """The gateway that is meant: `--host`, `BLAZAR_HOST`, else the configured address; with the secret of `BLAZAR_KEY`,
    else of the first admin key whose secret the configuration holds.

    Raises:
        UsageError: that is no address.
        ConfigError: the configuration is needed, and has mistakes.
    """
    address: str = options.host or context.env.get("BLAZAR_HOST", "")
    if address:
        return GatewayClient(base_url(address), secret_for(context))
    config = load_config(context.dirs.config_file, context.env)
    return GatewayClient(configured_url(config), secret_for(context))


def configured_url(config: Config) -> str:
    """The URL of the gateway that this configuration makes.

    Raises:
        UsageError: its port is known to nobody but itself.
    """
    if config.port == 0:
        raise UsageError("the configured port is 0: any free one", "name the gateway: --host HOST:PORT, or BLAZAR_HOST")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)
    return base_url(f"[{host}]:{config.port}" if ":" in host else f"{host}:{config.port}")


def secret_for(context: Context) -> str:
    """The secret to send; "" where there is none. A broken configuration has none: whoever needs it will say so."""
    if secret := context.env.get("BLAZAR_KEY", ""):
        return secret
    try:
        config = load_config(context.dirs.config_file, context.env)
    except ConfigError:
        return ""
    return next((key.key for key in config.keys if key.key and not key.models), "")


def base_url(address: str) -> str:
    """The URL of `HOST`, `HOST:PORT` or a URL.

    Raises:
        UsageError: it is none of these.
    """
    text = address.strip()
    if "://" not in text and text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"  # an IPv6 address by itself
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        port = parts.port
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise UsageError(f"{address!r} is no address of a gateway", "give HOST, HOST:PORT or http://HOST:PORT")
    return url.rstrip("/") if port is not None or "://" in text else f"{url.rstrip('/')}:{DEFAULTS.port}"


def refusal(status: int, content: bytes) -> CommandError:
    """An error answer of the gateway, as an error of the command."""
    said = words_of(content) or f"the gateway answered with status {status}: {content[:200].decode('utf-8', 'replace')}"
    return CommandError(said, "set BLAZAR_KEY to a valid secret" if status == 401 else "")
