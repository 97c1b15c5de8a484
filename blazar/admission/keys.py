"""The key ring: from a presented secret to the key that it belongs to.

Secrets are looked up by their SHA-256, so that the cost of a look-up neither grows with the number of keys nor tells,
by its time, how much of a guess was right. The ring never keeps a secret in the clear.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from blazar.base.errors import ApiError, Code
from blazar.config.schema import KeyConfig


class Key(msgspec.Struct, frozen=True):
    """A client's identity. `models` empty: an admin key (R04)."""

    name: str
    models: frozenset[str] = frozenset()

    @property
    def admin(self) -> bool:
        """Whether it may change the gateway and see what other keys do."""
        return not self.models

    def may_use(self, model: str) -> bool:
        """Whether the model of that (resolved) name is in its scope (R03)."""
        return not self.models or model in self.models


ANONYMOUS = Key(name="anonymous")  # an open gateway's client: everything but key management (R01, R02)


class KeyRing:
    """The configured keys.

    Args:
        entries: the `[[keys]]` of the configuration; none: the gateway is open (R01).
    """

    def __init__(self, entries: Iterable[KeyConfig]) -> None:
        self._by_digest: dict[bytes, Key] = {}
        for entry in entries:
            digest = (
                bytes.fromhex(entry.key_hash.removeprefix("sha256:")) if entry.key_hash else secret_digest(entry.key)
            )
            self._by_digest[digest] = Key(name=entry.name, models=frozenset(entry.models))

    @property
    def open(self) -> bool:
        """Whether the gateway asks nobody for a secret."""
        return not self._by_digest

    def identify(self, authorization: str, x_api_key: str) -> Key:
        """The key of the presented secret: `Authorization: Bearer`, else `x-api-key` (R06).

        Raises:
            ApiError: UNAUTHORIZED.
        """
        if not self._by_digest:
            return ANONYMOUS
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() != "bearer":
            secret = x_api_key
        secret = secret.strip()
        if not secret:
            raise ApiError(Code.UNAUTHORIZED, "this gateway needs a key, and the request has none")
        key = self._by_digest.get(secret_digest(secret))
        if key is None:
            raise ApiError(Code.UNAUTHORIZED, "the secret in the request belongs to no key")
        return key


def secret_digest(secret: str) -> bytes:
    """What a secret is looked up by."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


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
