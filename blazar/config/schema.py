"""The one table of configuration keys.

A key exists here when something reads it. `Meta.extra` says which unit a number has and whether a reload changes it at
once (`live`) or only a restart does.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field


def _meta(doc: str, *, live: bool, unit: str = "", **limits: Any) -> Meta:
    return Meta(description=doc, extra={"live": live, "unit": unit}, **limits)


LogLevel = Literal["debug", "info", "warning", "error"]
Transport = Literal["unix", "tcp"]
OnAbort = Literal["cancel", "drain"]
PriorityName = Literal["high", "normal", "low"]

MAX_LIMIT = 2**48  # of a key's limits: sums of many still fit 64 bits
MAX_WEIGHT = 1_000_000
MAX_QUEUE = 1_000_000
QueueLength = Annotated[int, Meta(ge=0, le=MAX_QUEUE)]

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]+\Z")]


class KeyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[keys]]` entry: a client's identity. Exactly one of `key` and `key_hash` is set."""

    name: Annotated[Name, _meta("who it is, in logs and metrics; letters, digits, `.`, `_`, `-`", live=True)]
    key: Annotated[str, _meta("the secret that the client sends", live=True)] = ""
    key_hash: Annotated[
        str,
        _meta(
            "`sha256:` and the hex digest of the secret, instead of `key`",
            live=True,
            pattern=r"^(sha256:[0-9a-f]{64})?\Z",
        ),
    ] = ""
    key_prefix: Annotated[
        str, _meta("the beginning of the secret, for lists, where `key_hash` is set", live=True, max_length=16)
    ] = ""
    models: Annotated[
        list[str], _meta("models that it may use; empty: all, and it may manage the gateway", live=True)
    ] = field(default_factory=list)
    rpm: Annotated[int, _meta("requests in any 60 s; 0: no limit", live=True, ge=0, le=MAX_LIMIT)] = 0
    tpm: Annotated[int, _meta("tokens in any 60 s; 0: no limit", live=True, ge=0, le=MAX_LIMIT)] = 0
    daily_tokens: Annotated[int, _meta("tokens a UTC day; 0: no limit", live=True, ge=0, le=MAX_LIMIT)] = 0
    max_concurrent: Annotated[int, _meta("requests under way; 0: no limit", live=True, ge=0, le=MAX_LIMIT)] = 0
    weight: Annotated[
        int, _meta("its share of a queue, relative to other keys'; 0 counts as 1", live=True, ge=0, le=MAX_WEIGHT)
    ] = 1
    max_priority: Annotated[PriorityName, _meta("the best that `X-Blazar-Priority` gets it", live=True)] = "high"


class RemoteConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[remotes]]` entry: another gateway or service. It gets what clients ask as `NAME:MODEL`."""

    name: Annotated[Name, _meta("what stands before the colon; the same name again: a pool", live=True)]
    url: Annotated[
        str,
        _meta(
            "where it is, `http://HOST:PORT` or `https://HOST`, with a path where it has one",
            live=True,
            pattern=r"^https?://[A-Za-z0-9._\[\]:-]+(/[^?#\s]*)?\Z",
        ),
    ]
    key: Annotated[
        str, _meta("the secret that it asks for; a client's own never reaches it", live=True, pattern=r"^[!-~]*\Z")
    ] = ""
    models: Annotated[list[str], _meta("its models, for lists", live=True)] = field(default_factory=list)


class ModelOverride(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[model_overrides.NAME]` table: what is different for one model. It counts from the model's next start."""

    ctx: Annotated[int, _meta("context of one slot", live=True, unit="tokens", ge=0)] = 0
    slots: Annotated[int, _meta("requests that run at once; 0: `slots`", live=True, ge=0, le=4096)] = 0
    extra_args: Annotated[list[str], _meta("further arguments of the engine; its flags are checked", live=True)] = (
        field(default_factory=list)
    )
    engine: Annotated[str, _meta("tag or kind of the engine that has to serve it", live=True)] = ""
    on_abort: Annotated[OnAbort | None, _meta("as `on_abort`", live=True)] = None
    max_queue: Annotated[QueueLength | None, _meta("as `max_queue`", live=True)] = None


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration."""

    host: Annotated[str, _meta("address to listen on", live=False, min_length=1)] = "127.0.0.1"
    port: Annotated[int, _meta("port to listen on; 0: a free one", live=False, ge=0, le=65535)] = 11435
    allowed_hosts: Annotated[list[str], _meta("further Host headers that a loopback address accepts", live=True)] = (
        field(default_factory=list)
    )
    cors_origins: Annotated[list[str], _meta("origins whose pages may use the gateway; `*`: any", live=True)] = field(
        default_factory=list
    )
    default_ctx: Annotated[int, _meta("context of one slot", live=True, unit="tokens", ge=128)] = 16384
    slots: Annotated[int, _meta("requests that a model runs at once; 0: 4", live=True, ge=0, le=4096)] = 0
    max_streams: Annotated[
        int, _meta("requests under way at once, all models together", live=False, ge=1, le=65536)
    ] = 8192
    max_queue: Annotated[
        int,
        _meta("requests that wait for a slot of one model; more are refused", live=True, ge=0, le=MAX_QUEUE),
    ] = 256
    queue_wait_secs: Annotated[
        float, _meta("longest wait for a slot of a loaded model", live=True, unit="s", ge=0.001, le=86400)
    ] = 120.0
    prompt_preflight: Annotated[
        bool, _meta("refuse prompts that do not fit the context, before they reach an engine", live=True)
    ] = True
    singleflight: Annotated[
        bool, _meta("let a duplicate of a request under way wait for its warm prompt, at most 5 s", live=True)
    ] = True
    singleflight_share: Annotated[
        bool, _meta("and give it the very answer, where the request is greedy or seeded", live=True)
    ] = False
    aliases: Annotated[
        dict[str, str | list[str]],
        _meta("what clients call a model: its name here, or several to try in order", live=True),
    ] = field(default_factory=dict)
    body_timeout_secs: Annotated[
        float, _meta("longest wait for a byte of a request's body; 0: for ever", live=True, unit="s", ge=0)
    ] = 60.0
    child_header_timeout_secs: Annotated[
        float, _meta("longest wait for an engine's response headers; 0: for ever", live=True, unit="s", ge=0)
    ] = 120.0
    stream_idle_timeout_secs: Annotated[
        float, _meta("longest wait for a byte of a running stream; 0: for ever", live=True, unit="s", ge=0)
    ] = 300.0
    model_load_timeout_secs: Annotated[
        float, _meta("longest load of a model; 0: by the engine's kind, 180 or 600", live=True, unit="s", ge=0)
    ] = 0.0
    child_transport: Annotated[Transport, _meta("how engines are spoken to", live=True)] = "unix"
    on_abort: Annotated[OnAbort, _meta("what an engine is told when a client leaves: end, or nothing", live=True)] = (
        "cancel"
    )
    engine_env: Annotated[dict[str, str], _meta("further environment variables of engines", live=True)] = field(
        default_factory=dict
    )
    log_level: Annotated[LogLevel, _meta("least important message that is logged", live=True)] = "info"
    access_log: Annotated[bool, _meta("write `log/access.jsonl`", live=False)] = True
    keys: Annotated[list[KeyConfig], _meta("clients' keys; none: the gateway is open", live=True)] = field(
        default_factory=list
    )
    remotes: Annotated[list[RemoteConfig], _meta("other gateways, as `NAME:MODEL`", live=True)] = field(
        default_factory=list
    )
    model_overrides: Annotated[dict[str, ModelOverride], _meta("what is different for one model", live=True)] = field(
        default_factory=dict
    )


DEFAULTS = msgspec.convert({}, Config)
