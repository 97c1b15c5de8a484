"""The key ring: from a presented secret to the key that it belongs to.

Secrets are looked up by their SHA-256, so that the cost of a look-up neither grows with the number of keys nor tells,
by its time, how much of a guess was right. The ring never keeps a secret in the clear.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from blazar.admission.ticket import Priority
from blazar.base.errors import ApiError, Code
from blazar.config.schema import KeyConfig

PREFIX_CHARS = 6  # of a secret that a list shows
PREFIX_SHARE = 4  # and at most this fraction of it: a short secret shows next to nothing


class Limits(msgspec.Struct, frozen=True):
    """What a key may use; 0: no limit."""

    rpm: int = 0  # requests in any 60 seconds
    tpm: int = 0  # tokens in any 60 seconds
    daily_tokens: int = 0  # tokens a UTC day
    max_concurrent: int = 0  # requests under way
    weight: int = 1  # share of a queue, relative to other keys'; at least 1
    max_priority: Priority = Priority.HIGH  # the best that it may ask for


class Key(msgspec.Struct, frozen=True):
    """A client's identity. `models` empty: an admin key (R04)."""

    name: str
    models: frozenset[str] = frozenset()
    limits: Limits = Limits()
    prefix: str = ""  # the beginning of its secret, for lists; "" where that is not known

    @property
    def label(self) -> str:
        """What logs and metrics call it."""
        return self.name or "anonymous"

    @property
    def admin(self) -> bool:
        """Whether it may change the gateway and see what other keys do."""
        return not self.models

    def may_use(self, model: str) -> bool:
        """Whether the model of that (resolved) name is in its scope (R03)."""
        return not self.models or model in self.models


ANONYMOUS = Key(name="")  # an open gateway's client: everything but key management (R01, R02); no key has this name


class KeyRing:
    """The configured keys.

    Args:
        entries: the `[[keys]]` of the configuration; none: the gateway is open (R01).
    """

    def __init__(self, entries: Iterable[KeyConfig]) -> None:
        self._by_digest = {digest_of(entry): _key(entry) for entry in entries}

    @property
    def open(self) -> bool:
        """Whether the gateway asks nobody for a secret."""
        return not self._by_digest

    @property
    def keys(self) -> tuple[Key, ...]:
        """Every key, in the order of the configuration."""
        return tuple(self._by_digest.values())

    def identify(self, authorization: str, x_api_key: str) -> Key:
        """The key of the presented secret: `Authorization: Bearer`, else `x-api-key` (R06).

        Raises:
            ApiError: UNAUTHORIZED. Neither says which keys there are.
        """
        if not self._by_digest:
            return ANONYMOUS
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() != "bearer" or not (secret := secret.strip()):
            secret = x_api_key.strip()
        if not secret:
            raise ApiError(Code.UNAUTHORIZED, "this gateway needs a key, and the request has none")
        key = self._by_digest.get(secret_digest(secret))
        if key is None:
            raise ApiError(Code.UNAUTHORIZED, "the secret in the request belongs to no key")
        return key


def _key(entry: KeyConfig) -> Key:
    limits = Limits(
        rpm=entry.rpm,
        tpm=entry.tpm,
        daily_tokens=entry.daily_tokens,
        max_concurrent=entry.max_concurrent,
        weight=entry.weight or 1,
        max_priority=Priority[entry.max_priority.upper()],
    )
    prefix = entry.key_prefix or secret_prefix(entry.key)
    return Key(name=entry.name, models=frozenset(entry.models), limits=limits, prefix=prefix)


def digest_of(entry: KeyConfig) -> bytes:
    """What an entry's secret is looked up by."""
    return bytes.fromhex(entry.key_hash.removeprefix("sha256:")) if entry.key_hash else secret_digest(entry.key)


def secret_digest(secret: str) -> bytes:
    """What a secret is looked up by."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def secret_prefix(secret: str) -> str:
    """As much of a secret as may be shown."""
    return secret[: min(PREFIX_CHARS, len(secret) // PREFIX_SHARE)]


def require_scope(key: Key, model: str) -> None:
    """Refuse a model that is not in the key's scope (R03).

    Raises:
        ApiError: KEY_SCOPE_FORBIDDEN.
    """
    if not key.may_use(model):
        raise ApiError(Code.KEY_SCOPE_FORBIDDEN, f"key {key.name!r} may not use model {model!r}")


def require_admin(key: Key, what: str) -> None:
    """Refuse a scoped key what changes the gateway or shows other keys' doings (R07).

    Raises:
        ApiError: KEY_SCOPE_FORBIDDEN.
    """
    if not key.admin:
        raise ApiError(Code.KEY_SCOPE_FORBIDDEN, f"key {key.name!r} is scoped to models: {what} needs an admin key")
