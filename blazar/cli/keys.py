"""`keys`: the keys of a running gateway. A secret is printed once, when it is made."""

from __future__ import annotations

import argparse
import sys
from urllib.parse import quote

import msgspec

from blazar.base.errors import UsageError
from blazar.cli.client import find_gateway
from blazar.cli.main import Context
from blazar.cli.table import print_json, print_table

UNLIMITED = "-"


class Today(msgspec.Struct, frozen=True):
    """What a key has used since midnight, UTC."""

    requests: int
    tokens: int


class ListedKey(msgspec.Struct, frozen=True):
    """A key, as `/api/keys` shows it."""

    name: str
    prefix: str
    models: tuple[str, ...]
    rpm: int
    tpm: int
    daily_tokens: int
    max_concurrent: int
    weight: int
    in_flight: int
    today: Today


class Listed(msgspec.Struct, frozen=True):
    """Answer of GET /api/keys."""

    keys: tuple[ListedKey, ...]


class NewKey(msgspec.Struct, frozen=True, omit_defaults=True):
    """Body of POST /api/keys."""

    name: str
    models: tuple[str, ...] = ()
    rpm: int = 0
    tpm: int = 0
    daily_tokens: int = 0
    max_concurrent: int = 0
    weight: int = 1
    max_priority: str = "high"


class Made(msgspec.Struct, frozen=True):
    """Answer of POST /api/keys and of a rotation."""

    name: str
    key: str


def list_keys(context: Context, options: argparse.Namespace) -> int:
    """Every key, with today's use."""
    with find_gateway(context, options) as client:
        content = client.ask("GET", "/api/keys")
        keys = client.read(content, Listed).keys
    if options.json:
        print_json(msgspec.Raw(content))
        return 0
    print_table(
        ("NAME", "SECRET", "MODELS", "RPM", "TPM", "DAILY", "AT ONCE", "WEIGHT", "BUSY", "REQUESTS", "TOKENS TODAY"),
        [
            (
                key.name, key.prefix, ",".join(key.models) or "all (admin)", key.rpm or UNLIMITED, key.tpm or UNLIMITED,
                key.daily_tokens or UNLIMITED, key.max_concurrent or UNLIMITED, key.weight or 1, key.in_flight,
                key.today.requests, key.today.tokens,
            )
            for key in keys
        ],
    )  # fmt: skip
    return 0


def add(context: Context, options: argparse.Namespace) -> int:
    """A new key."""
    if not options.admin and not options.model:
        raise UsageError(
            "a key without models is an admin key: it may use every model and manage the gateway",
            "name its models with --model, or say --admin",
        )
    if options.admin and options.model:
        raise UsageError("--admin and --model exclude one another", "an admin key may use every model")
    ask = NewKey(
        name=options.name,
        models=tuple(options.model or ()),
        rpm=options.rpm,
        tpm=options.tpm,
        daily_tokens=options.daily_tokens,
        max_concurrent=options.max_concurrent,
        weight=options.weight,
        max_priority=options.max_priority,
    )
    with find_gateway(context, options) as client:
        show_secret(client.read(client.ask("POST", "/api/keys", ask), Made), options.json)
    return 0


def remove(context: Context, options: argparse.Namespace) -> int:
    """A key is no more."""
    with find_gateway(context, options) as client:
        client.ask("DELETE", f"/api/keys?name={quote(options.name, safe='')}")
    print(f"{options.name}: removed")
    return 0


def rotate(context: Context, options: argparse.Namespace) -> int:
    """Another secret for a key."""
    with find_gateway(context, options) as client:
        path = f"/api/keys/rotate?name={quote(options.name, safe='')}"
        show_secret(client.read(client.ask("POST", path), Made), options.json)
    return 0


def show_secret(made: Made, as_json: bool) -> None:
    """The one time that the secret is to be seen: alone on stdout, so that it can go into a pipe."""
    if as_json:
        print_json(made)
        return
    print(f"the secret of {made.name}, which is not shown again:", file=sys.stderr)
    print(made.key)
