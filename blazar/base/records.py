"""Records that services exchange: engines and models as the store keeps them, and the use of keys.

All but the counters of DayUse are frozen: to change one is to make another and hand it to the store. Paths are absolute
strings while in memory.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from blazar.base.errors import UsageError


class EngineKind(StrEnum):
    """The families of engines; each has one way of being launched, probed and spoken to."""

    LLAMACPP = "llamacpp"
    MISTRALRS = "mistralrs"
    SGLANG = "sglang"
    SDCPP = "sdcpp"
    WHISPER = "whisper"
    MLX = "mlx"
    PIPER = "piper"

    @classmethod
    def parse(cls, text: str) -> EngineKind:
        """The kind of that name.

        Raises:
            UsageError: there is none (V06); the message names those there are.
        """
        try:
            return cls(text)
        except ValueError:
            known = ", ".join(kind.value for kind in cls)
            raise UsageError(f"unknown engine kind {text!r}", f"choose one of {known}") from None


class EngineSource(StrEnum):
    """Who built an engine: decides which lane outranks which (B04)."""

    UPSTREAM = "upstream"
    FORK = "fork"
    LOCAL = "local"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine's binary said of itself when it was probed at install."""

    version: str  # as printed by --version, one line
    flags: tuple[str, ...]  # every long and short flag of --help, sorted
    architectures: tuple[str, ...] = ()  # model architectures found in the binary; () where that is unknown


class EngineRow(msgspec.Struct, frozen=True, kw_only=True):
    """An installed engine. At most one row of a kind is active."""

    tag: str  # unique
    kind: EngineKind
    source: EngineSource
    binary: str  # absolute path of the executable
    sha256: str  # hex digest of the executable
    manifest: Manifest
    active: bool
    installed_at: float  # seconds since the epoch, UTC


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be served."""

    name: str  # unique; no '#' (V05)
    path: str  # absolute path of the weights below <data>/models
    size_bytes: int
    sha256: str  # hex digest of the weights
    architecture: str  # general.architecture
    ctx_train: int  # context length that the model was trained with, in tokens; 0 where unknown
    parameters: int  # number of weights; 0 where unknown
    quant: str  # "Q4_1", "F16"…; "" where unknown
    chat_template: bool  # whether the file carries one
    source: str  # where it came from: "catalogue", "import"
    added_at: float  # seconds since the epoch, UTC


class DayUse(msgspec.Struct):
    """What a key has used on one UTC day, always the whole day's. Counted up in place by the key's account."""

    key: str  # its name; "" for an open gateway's clients
    day: int  # days since the epoch, UTC (T04)
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Both kinds."""
        return self.prompt_tokens + self.completion_tokens


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong, as `doctor` tells it."""

    check: str
    problem: str
    remedy: str
