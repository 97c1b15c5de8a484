"""`/api/keys`: list, add, remove and rotate the keys of a running gateway.

A secret is shown once, when it is made; what is kept of it is its hash and a short beginning for the list.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from blazar.admission.keys import Key, require_admin, secret_digest, secret_prefix
from blazar.api.views import respond_json
from blazar.base.errors import ApiError, Code
from blazar.config.edit import add_key, remove_key, set_key
from blazar.config.load import check_key
from blazar.flow.call import Call
from blazar.flow.gateway import Gateway
from blazar.relay.client import Client

SECRET_BYTES = 32
SECRET_HEAD = "bz-"
MAX_BODY_BYTES = 1 << 20
MANAGED = ("key", "key_hash", "key_prefix")  # fields that are the gateway's to fill

_decode_body = msgspec.json.Decoder(dict[str, Any]).decode


def require_manager(gateway: Gateway, call: Call) -> None:
    """Refuse whoever may not manage keys, and everybody where there are none (R02, R03)."""
    if gateway.keys.open:
        raise ApiError(
            Code.KEYS_NOT_CONFIGURED,
            "no keys configured: add the first [[keys]] entry in config.toml (or BLAZAR_KEYS env) and restart",
        )
    require_admin(call.key, "key management")


def require_file(gateway: Gateway) -> None:
    """Refuse a change where the keys do not come from the file: the next start would not know of it."""
    if gateway.keys_from_environment:
        raise ApiError(
            Code.CONFLICT, "the keys come from the environment, BLAZAR_KEYS: nothing was changed",
            "change the variable and restart, or unset it and use [[keys]] in config.toml",
        )  # fmt: skip


async def list_keys(gateway: Gateway, call: Call, client: Client) -> None:
    """Every key, with today's use; of its secret only the beginning."""
    require_manager(gateway, call)
    at = gateway.ledger.moment()
    shown = []
    for key in gateway.keys.keys:
        account = gateway.ledger.account(key)
        today = account.today(at)
        shown.append(
            {
                **describe(key),
                "in_flight": account.in_flight,
                "today": {
                    "requests": today.requests,
                    "prompt_tokens": today.prompt_tokens,
                    "completion_tokens": today.completion_tokens,
                    "tokens": today.tokens,
                },
            }
        )
    await respond_json(client, {"keys": shown})


def describe(key: Key) -> dict[str, Any]:
    """A key without its secret."""
    limits = key.limits
    return {
        "name": key.name,
        "prefix": f"{key.prefix}…",
        "admin": key.admin,
        "models": sorted(key.models),
        "rpm": limits.rpm,
        "tpm": limits.tpm,
        "daily_tokens": limits.daily_tokens,
        "max_concurrent": limits.max_concurrent,
        "weight": limits.weight,
        "max_priority": limits.max_priority.name.lower(),
    }


async def add(gateway: Gateway, call: Call, client: Client) -> None:
    """A new key; its secret is in the answer and nowhere else."""
    require_manager(gateway, call)
    require_file(gateway)
    fields = check_fields(await read_fields(gateway, call, client))
    name = fields["name"]
    if any(key.name == name for key in gateway.keys.keys):
        raise ApiError(Code.CONFLICT, f"there is a key {name!r} already", "choose another name, or remove that one")
    secret, kept = make_secret()
    await gateway.settings.change(lambda text: add_key(text, fields | kept))
    await respond_json(client, {**describe(find(gateway, name)), "key": secret}, 201)


async def remove(gateway: Gateway, call: Call, client: Client) -> None:
    """A key is no more, at once."""
    require_manager(gateway, call)
    require_file(gateway)
    name = named(gateway, call)
    if len(gateway.keys.keys) == 1:
        raise ApiError(
            Code.CONFLICT,
            f"{name!r} is the last key: without it the gateway would be open to everyone",
            "add another one first, or take [[keys]] out of config.toml by hand and restart",
        )
    await gateway.settings.change(lambda text: remove_key(text, name))
    await respond_json(client, {"removed": name})


async def rotate(gateway: Gateway, call: Call, client: Client) -> None:
    """Another secret for a key; the old one is none any more, at once."""
    require_manager(gateway, call)
    require_file(gateway)
    name = named(gateway, call)
    secret, kept = make_secret()
    await gateway.settings.change(lambda text: set_key(text, name, kept, drop=("key",)))
    await respond_json(client, {**describe(find(gateway, name)), "key": secret})


def make_secret() -> tuple[str, dict[str, str]]:
    """A new secret, and what is kept of it."""
    secret = SECRET_HEAD + secrets.token_urlsafe(SECRET_BYTES)
    return secret, {"key_hash": f"sha256:{secret_digest(secret).hex()}", "key_prefix": secret_prefix(secret)}


def named(gateway: Gateway, call: Call) -> str:
    """The key that `?name=` means."""
    name = dict(parse_qsl(call.query, keep_blank_values=True)).get("name", "")
    if not name:
        raise ApiError(Code.BAD_REQUEST, "the request names no key", "add ?name=NAME to the address")
    return find(gateway, name).name


def find(gateway: Gateway, name: str) -> Key:
    """The key of that name."""
    for key in gateway.keys.keys:
        if key.name == name:
            return key
    raise ApiError(Code.NOT_FOUND, f"there is no key {name[:100]!r}", "list the keys with `blazar keys list`")


async def read_fields(gateway: Gateway, call: Call, client: Client) -> dict[str, Any]:
    """The body of a request that adds a key."""
    body = await client.read_body(call.content_length, min(gateway.body_limit, MAX_BODY_BYTES))
    try:
        return _decode_body(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(Code.BAD_REQUEST, f'the body has to be a JSON object like {{"name": NAME}}: {error}') from error


def check_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a key as a client may give them, checked as the configuration's are (V01, V02).

    Raises:
        ApiError: BAD_REQUEST, with everything that is wrong.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    for name in MANAGED:
        if name in given:
            raise ApiError(Code.BAD_REQUEST, f"`{name}` is not for the request to give: the gateway makes the secret")
    problems = check_key(given)
    if problems:
        raise ApiError(Code.BAD_REQUEST, "; ".join(problems))
    return given
