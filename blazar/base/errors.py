"""The one tree of errors that people and clients see.

Every error names its stable code; the code fixes the HTTP status and the remedy that `GET /api/errors` lists. An error
is raised where its cause is known and rendered once, at the edge: by `blazar.api.errors` for HTTP, by `blazar.cli` for
the terminal. An error that a command can meet also says which exit status it means.

    BlazarError
    ├── ApiError          a request's refusal or failure, by code
    ├── ConfigError       problems of the configuration, all of them together     exit 2
    ├── UsageError        a command's arguments make no sense                      exit 2
    ├── PortInUseError    another process has the port (B23)                       exit 3
    └── CommandError      a command failed                                         exit 1
"""

from __future__ import annotations

from enum import Enum, unique
from typing import NamedTuple

import msgspec


class CodeFacts(NamedTuple):
    """What is fixed about a code: the HTTP status and what to do about it."""

    status: int
    remedy: str


@unique
class Code(Enum):
    """Stable error codes (SPEC §2): never renamed, never given another status."""

    MODEL_NOT_FOUND = CodeFacts(
        404, "list the models with `blazar list`, add one with `blazar pull` or `blazar import`"
    )
    MODEL_UNSUPPORTED_ENGINE = CodeFacts(
        400, "install an engine that serves this kind of model: `blazar engine install`"
    )
    MODEL_LOAD_TIMEOUT = CodeFacts(503, "look at the engine's log, or raise model_load_timeout_secs in config.toml")
    ENGINE_CIRCUIT_OPEN = CodeFacts(503, "wait for the time given, or run `blazar ps --reset`")
    ALL_SLOTS_BUSY = CodeFacts(503, "retry after the time given in retry-after")
    MODEL_TOO_LARGE = CodeFacts(503, "choose a smaller quantization, a smaller context or fewer slots")
    INSUFFICIENT_MEMORY = CodeFacts(507, "stop another model with `blazar stop MODEL`, or choose a smaller one")
    ENGINE_CRASHED = CodeFacts(502, "retry: the next request starts the engine anew; its log has the details")
    PROMPT_TOO_LONG = CodeFacts(400, "shorten the prompt, or serve the model with a larger ctx")
    VISION_PROJECTOR_MISSING = CodeFacts(400, "add the model's projector file with `blazar mmproj`")
    DIFFUSION_TEXT_REFUSAL = CodeFacts(400, "use a text model for text, or /v1/images for this one")
    UNAUTHORIZED = CodeFacts(401, "send a valid secret as `Authorization: Bearer` or `x-api-key`")
    KEYS_NOT_CONFIGURED = CodeFacts(403, "add the first [[keys]] entry in config.toml (or BLAZAR_KEYS env) and restart")
    KEY_SCOPE_FORBIDDEN = CodeFacts(403, "use a key whose scope covers this, or an admin key")
    HOST_FORBIDDEN = CodeFacts(403, "use the bound address, or add the name to allowed_hosts in config.toml")
    RATE_LIMITED = CodeFacts(429, "retry after the time given in retry-after")
    PAYLOAD_TOO_LARGE = CodeFacts(413, "send a smaller request")
    REQUEST_TIMEOUT = CodeFacts(408, "send the request's body without long pauses")
    UNPROCESSABLE = CodeFacts(422, "the answer failed a check: the message says which")
    GATEWAY_TIMEOUT = CodeFacts(504, "retry, or raise child_header_timeout_secs in config.toml")
    BAD_GATEWAY = CodeFacts(502, "retry; if it goes on, look at the engine's log")
    BAD_REQUEST = CodeFacts(400, "correct the request as the message says")
    NOT_FOUND = CodeFacts(404, "check the path: GET /.well-known/blazar and the docs list the routes")
    METHOD_NOT_ALLOWED = CodeFacts(405, "use one of the methods in the allow header")
    CONFLICT = CodeFacts(409, "resolve the conflict that the message names, then retry")
    CLIENT_CLOSED = CodeFacts(499, "nothing to do: the client left before the answer was complete")
    NOT_IMPLEMENTED = CodeFacts(501, "use a route or an engine that can do this")
    UNAVAILABLE = CodeFacts(503, "retry in a moment: /readyz tells when")
    INTERNAL = CodeFacts(500, "report it with the trace id of the response")

    @property
    def status(self) -> int:
        """HTTP status of every answer with this code."""
        return self.value.status

    @property
    def remedy(self) -> str:
        """What the reader of the error can do about it."""
        return self.value.remedy


class BlazarError(Exception):
    """Root of the errors that are meant to be read: one line that says what is wrong, and a remedy.

    Args:
        message: what is wrong, with the values involved; one line, no final period.
        remedy: the command or key that fixes it; may be empty.
    """

    exit_status = 1

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


class ApiError(BlazarError):
    """A request that is refused or failed, before or after the first byte of its answer.

    Args:
        code: the stable code; it fixes the status.
        message: as in BlazarError.
        remedy: what fixes it; the code's own remedy where empty.
        retry_after_s: seconds until a retry can succeed, sent as `retry-after`; None where that is unknown.
        kind: which of the limits behind the code it was; "" where there is only one.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        remedy: str = "",
        *,
        retry_after_s: int | None = None,
        kind: str = "",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message, remedy or code.remedy)
        self.code = code
        self.retry_after_s = retry_after_s
        self.kind = kind
        self.headers = headers

    def again(self) -> ApiError:
        """The same error for another who waited: one exception object must not be raised in two places."""
        return ApiError(
            self.code,
            self.message,
            self.remedy,
            retry_after_s=self.retry_after_s,
            kind=self.kind,
            headers=self.headers,
        )


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong with the configuration: where, and what would be accepted (V22)."""

    source: str  # the file's path, or the environment variable's name
    line: int  # 1-based line in the file; 0 where there is none
    key: str  # dotted key
    text: str  # what is wrong, with the bad value and the accepted ones

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}" if self.line else self.source
        return f"{where}: {self.key}: {self.text}" if self.key else f"{where}: {self.text}"


class ConfigError(BlazarError):
    """Everything that is wrong with the configuration, reported together; nothing starts half-configured (V22)."""

    exit_status = 2

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class UsageError(BlazarError):
    """A command was called with arguments that make no sense."""

    exit_status = 2


class PortInUseError(BlazarError):
    """Another process listens on the address (B23)."""

    exit_status = 3


class CommandError(BlazarError):
    """A command could not do what it was asked to do; nothing is left half done."""
