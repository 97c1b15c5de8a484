"""The smallest GGUF files, made byte by byte, so that tests can break them wherever they like."""

from __future__ import annotations

import struct
from pathlib import Path


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tiny_gguf(
    *,
    version: int = 3,
    magic: bytes = b"GGUF",
    pairs: list[bytes] | None = None,
    tensors: list[tuple[str, tuple[int, ...], int, int]] | None = None,
    data: int = 64,
) -> bytes:
    """A file of architecture llama with one tensor of 16 floats; each part can be replaced."""
    if pairs is None:
        pairs = [
            pair("general.architecture", 8, text("llama")),
            pair("llama.context_length", 4, struct.pack("<I", 2048)),
        ]
    if tensors is None:
        tensors = [("token_embd.weight", (16,), 0, 0)]
    out = magic + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs)
    for name, shape, kind, offset in tensors:
        out += (
            text(name)
            + struct.pack("<I", len(shape))
            + struct.pack(f"<{len(shape)}Q", *shape)
            + struct.pack("<IQ", kind, offset)
        )
    return out + b"\0" * (-len(out) % 32) + b"\0" * data


def write_tiny_gguf(path: Path) -> Path:
    path.write_bytes(tiny_gguf())
    return path
