"""Reads what a GGUF file says of itself: the metadata and the list of tensors, never the weights.

The file is mapped, every read is checked against its end and every count against a limit, so that a broken or hostile
file costs an error and not memory or time. Format: GGUF versions 2 and 3, little endian (ggml's own description of it).
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from blazar.base.errors import CommandError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_PAIRS = 65_536
MAX_TENSORS = 1_000_000
MAX_KEY_BYTES = 65_535
MAX_STRING_BYTES = 64 << 20  # a chat template or one token; longer is garbage
MAX_ARRAY = 16_777_216  # elements: vocabularies have up to a few hundred thousand
MAX_DEPTH = 4  # arrays of arrays
MAX_DIMENSIONS = 8
DEFAULT_ALIGNMENT = 32

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
SCALARS = {
    UINT8: struct.Struct("<B"), INT8: struct.Struct("<b"), UINT16: struct.Struct("<H"), INT16: struct.Struct("<h"),
    UINT32: struct.Struct("<I"), INT32: struct.Struct("<i"), FLOAT32: struct.Struct("<f"), BOOL: struct.Struct("<?"),
    UINT64: struct.Struct("<Q"), INT64: struct.Struct("<q"), FLOAT64: struct.Struct("<d"),
}  # fmt: skip

# ggml's tensor types: name, weights in a block, bytes of a block.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip


class GgufError(CommandError):
    """The file is not a GGUF file that can be served; the message says what is wrong with it, and where."""


class GgufInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a GGUF file says. Counts are 0 where the file does not say."""

    version: int
    architecture: str
    name: str
    ctx_train: int  # tokens
    parameters: int
    quant: str  # the type that holds most weights
    chat_template: str  # "" for none
    tensors: int
    blocks: int
    embedding: int
    heads: int
    heads_kv: int
    vocabulary: int
    longest_token_bytes: int
    quants: dict[str, int]  # weights by type


def read_gguf(path: Path) -> GgufInfo:
    """Read a file's header.

    Raises:
        GgufError: it is broken, or no GGUF file.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise GgufError(f"{path} has {size} bytes: too short for a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data, size).read()
    except IsADirectoryError:
        raise GgufError(f"{path} is a directory", "give the path of a .gguf file") from None
    except FileNotFoundError:
        raise GgufError(f"{path} does not exist", "check the path") from None
    except OSError as error:
        raise GgufError(f"{path} cannot be read: {error.strerror}") from error


class _Reader:
    """A position in a mapped file. Every step is checked."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path = path
        self._data = data
        self._size = size
        self._at = 0
        self._part = "the header"
        self._longest_token = 0

    def read(self) -> GgufInfo:
        self._check_magic()
        version = self._scalar(UINT32)
        if version not in VERSIONS:
            if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
                raise self._error("is a big-endian GGUF file", "convert it to little endian")
            raise self._error(f"has GGUF version {version}, and versions {' and '.join(map(str, VERSIONS))} are known")
        tensors, pairs = self._count(MAX_TENSORS, "tensors"), self._count(MAX_PAIRS, "metadata pairs")
        self._part = "the metadata"
        meta = self._metadata(pairs)
        self._part = "the list of tensors"
        weights = self._tensors(tensors, meta)
        return self._info(version, meta, weights, tensors)

    def _check_magic(self) -> None:
        magic = self._take(4)
        if magic != MAGIC:
            if magic == MAGIC[::-1]:
                raise self._error("is a big-endian GGUF file", "convert it to little endian")
            raise self._error(f"is no GGUF file: it starts with {magic!r}", "give a file that ends in .gguf")

    def _info(self, version: int, meta: dict[str, Any], weights: Counter[str], tensors: int) -> GgufInfo:
        architecture = meta.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise self._error("does not name its architecture (general.architecture)")

        def number(key: str) -> int:
            value = meta.get(f"{architecture}.{key}")
            return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

        def text(key: str) -> str:
            value = meta.get(key)
            return value if isinstance(value, str) else ""

        heads = number("attention.head_count")
        tokens = meta.get("tokenizer.ggml.tokens")
        return GgufInfo(
            version=version,
            architecture=architecture,
            name=text("general.name"),
            ctx_train=number("context_length"),
            parameters=weights.total(),
            quant=weights.most_common(1)[0][0] if weights else "",
            chat_template=text("tokenizer.chat_template"),
            tensors=tensors,
            blocks=number("block_count"),
            embedding=number("embedding_length"),
            heads=heads,
            heads_kv=number("attention.head_count_kv") or heads,
            vocabulary=tokens if isinstance(tokens, int) else 0,
            longest_token_bytes=self._longest_token,
            quants=dict(weights),
        )

    # ---- parts ----

    def _metadata(self, pairs: int) -> dict[str, Any]:
        """Scalars and strings by key; of an array only its length, which is all that is used of one."""
        meta: dict[str, Any] = {}
        for _ in range(pairs):
            key = self._string(MAX_KEY_BYTES)
            if key in meta:
                raise self._error(f"has the metadata key {key!r} twice")
            kind = self._scalar(UINT32)
            if kind == ARRAY:
                meta[key] = self._array(key, depth=1)
            else:
                meta[key] = self._value(kind, key)
        return meta

    def _value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self._string(MAX_STRING_BYTES, strict=False)
        if kind not in SCALARS:
            raise self._error(f"has a value of unknown type {kind} at metadata key {key!r}")
        return self._scalar(kind)

    def _array(self, key: str, depth: int) -> int:
        """Pass over an array; returns its length."""
        if depth > MAX_DEPTH:
            raise self._error(f"nests arrays deeper than {MAX_DEPTH} at metadata key {key!r}")
        kind = self._scalar(UINT32)
        length = self._count(MAX_ARRAY, f"elements of {key!r}")
        if kind in SCALARS:
            self._skip(length * SCALARS[kind].size)
        elif kind == STRING:
            longest = 0
            for _ in range(length):
                size = self._scalar(UINT64)
                if size > MAX_STRING_BYTES:
                    raise self._error(f"has a string of {size} bytes at metadata key {key!r}")
                self._skip(size)
                longest = max(longest, size)
            if key == "tokenizer.ggml.tokens":
                self._longest_token = longest
        elif kind == ARRAY:
            for _ in range(length):
                self._array(key, depth + 1)
        else:
            raise self._error(f"has an array of unknown type {kind} at metadata key {key!r}")
        return length

    def _tensors(self, count: int, meta: dict[str, Any]) -> Counter[str]:
        """Weights by type, after checking that every tensor lies within the file."""
        alignment = meta.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment % 8:
            raise self._error(f"has the alignment {alignment!r}: not a multiple of 8")
        weights: Counter[str] = Counter()
        ends: list[tuple[str, int, int]] = []
        for _ in range(count):
            name = self._string(MAX_KEY_BYTES)
            dimensions = self._scalar(UINT32)
            if not 1 <= dimensions <= MAX_DIMENSIONS:
                raise self._error(f"has a tensor {name!r} of {dimensions} dimensions")
            shape = [self._scalar(UINT64) for _ in range(dimensions)]
            kind, offset = self._scalar(UINT32), self._scalar(UINT64)
            if kind not in TENSOR_TYPES:
                raise self._error(
                    f"has a tensor {name!r} of unknown type {kind}", "update Blazar, or use another quantization"
                )
            label, block, block_bytes = TENSOR_TYPES[kind]
            number = 1
            for side in shape:
                number *= side
            if shape[0] % block:
                raise self._error(
                    f"has a tensor {name!r} whose rows of {shape[0]} are no multiple of {label}'s block of {block}"
                )
            if offset % alignment:
                raise self._error(f"has a tensor {name!r} that is not aligned to {alignment} bytes")
            weights[label] += number
            ends.append((name, offset, number // block * block_bytes))
        start = -(-self._at // alignment) * alignment
        for name, offset, size in ends:
            if start + offset + size > self._size:
                raise self._error(
                    f"is cut short: tensor {name!r} ends at byte {start + offset + size}, the file at {self._size}",
                    "fetch or copy the file again",
                )
        return weights

    # ---- steps ----

    def _error(self, text: str, remedy: str = "") -> GgufError:
        return GgufError(f"{self._path} {text}", remedy)

    def _skip(self, count: int) -> None:
        if count > self._size - self._at:
            raise self._error(f"is cut short in {self._part}, at byte {self._size}", "fetch or copy the file again")
        self._at += count

    def _take(self, count: int) -> bytes:
        start = self._at
        self._skip(count)
        return self._data[start : self._at]

    def _scalar(self, kind: int) -> Any:
        shape = SCALARS[kind]
        return shape.unpack(self._take(shape.size))[0]

    def _count(self, limit: int, what: str) -> int:
        count: int = self._scalar(UINT64)
        if count > limit:
            raise self._error(f"claims to have {count} {what}: more than {limit} is not believed")
        return count

    def _string(self, limit: int, *, strict: bool = True) -> str:
        size = self._scalar(UINT64)
        if size > limit:
            raise self._error(f"has a string of {size} bytes in {self._part}: more than {limit} is not believed")
        data = self._take(size)
        try:
            return data.decode("utf-8", "strict" if strict else "replace")
        except UnicodeDecodeError:
            raise self._error(f"has a name that is not UTF-8 in {self._part}, near byte {self._at}") from None
