"""The GGUF reader: what it reads, and a clear error for each kind of broken file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blazar.models.gguf import GgufError, GgufInfo, read_gguf
from tests.support.files import pair, text, tiny_gguf

ARCH = pair("general.architecture", 8, text("llama"))


def array(kind: int, *items: bytes) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def read(tmp_path: Path, data: bytes) -> GgufInfo:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return read_gguf(path)


def test_header_is_read(tmp_path: Path) -> None:
    pairs = [
        ARCH,
        pair("general.name", 8, text("Tiny")),
        pair("llama.context_length", 4, struct.pack("<I", 2048)),
        pair("llama.block_count", 4, struct.pack("<I", 3)),
        pair("llama.embedding_length", 10, struct.pack("<Q", 64)),
        pair("llama.attention.head_count", 4, struct.pack("<I", 8)),
        pair("llama.attention.head_count_kv", 4, struct.pack("<I", 2)),
        pair("tokenizer.chat_template", 8, text("{{ messages }}")),
        pair("tokenizer.ggml.tokens", 9, array(8, text("a"), text("жжж"), text("bc"))),
        pair("tokenizer.ggml.scores", 9, array(6, *[struct.pack("<f", 0.5)] * 3)),
        pair("general.flag", 7, b"\1"),
    ]
    info = read(tmp_path, tiny_gguf(pairs=pairs, tensors=[("a", (256, 2), 12, 0), ("b", (16,), 0, 288)], data=384))
    assert (info.architecture, info.name, info.ctx_train, info.blocks, info.embedding) == ("llama", "Tiny", 2048, 3, 64)
    assert (info.heads, info.heads_kv, info.vocabulary, info.longest_token_bytes) == (8, 2, 3, 6)
    assert (info.parameters, info.quant, info.quants) == (528, "Q4_K", {"Q4_K": 512, "F32": 16})
    assert info.chat_template == "{{ messages }}"


GOOD = tiny_gguf()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes: too short"),
        (b"GGUF", "4 bytes: too short"),
        (b"PK\3\4" + bytes(100), "is no GGUF file: it starts with b'PK"),
        (b"FUGG" + bytes(100), "big-endian"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian"),
        (tiny_gguf(version=1), "GGUF version 1"),
        (tiny_gguf(version=99), "GGUF version 99"),
        (GOOD[:60], "cut short in the metadata"),
        (GOOD[:130], "cut short in the list of tensors"),
        (GOOD[:-40], "cut short: tensor 'token_embd.weight' ends at byte"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60), "claims to have 1152921504606846976 metadata pairs"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1), "claims to have 1152921504606846976 tensors"),
        (tiny_gguf(pairs=[pair("k", 99, b"")]), "unknown type 99 at metadata key 'k'"),
        (tiny_gguf(pairs=[pair("k", 9, struct.pack("<IQ", 99, 1))]), "array of unknown type 99"),
        (tiny_gguf(pairs=[pair("k", 9, struct.pack("<IQ", 0, 1 << 40))]), "elements of 'k'"),
        (tiny_gguf(pairs=[pair("k", 9, struct.pack("<IQ", 9, 1) * 6)]), "nests arrays deeper"),
        (tiny_gguf(pairs=[pair("k", 8, struct.pack("<Q", 1 << 50))]), "string of 1125899906842624 bytes"),
        (tiny_gguf(pairs=[pair("k", 9, struct.pack("<IQQ", 8, 1, 1 << 50))]), "string of 1125899906842624 bytes"),
        (tiny_gguf(pairs=[struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IB", 0, 1)]), "not UTF-8"),
        (tiny_gguf(pairs=[ARCH, ARCH]), "'general.architecture' twice"),
        (tiny_gguf(pairs=[]), "does not name its architecture"),
        (tiny_gguf(pairs=[pair("general.architecture", 4, struct.pack("<I", 1))]), "does not name its architecture"),
        (tiny_gguf(pairs=[ARCH, pair("general.alignment", 4, struct.pack("<I", 3))]), "alignment 3"),
        (tiny_gguf(tensors=[("t", (), 0, 0)]), "of 0 dimensions"),
        (tiny_gguf(tensors=[("t", (1,) * 9, 0, 0)]), "of 9 dimensions"),
        (tiny_gguf(tensors=[("t", (16,), 77, 0)]), "unknown type 77"),
        (tiny_gguf(tensors=[("t", (16,), 12, 0)]), "no multiple of Q4_K's block of 256"),
        (tiny_gguf(tensors=[("t", (16,), 0, 7)]), "not aligned"),
        (tiny_gguf(tensors=[("t", (16,), 0, 1 << 60)]), "cut short"),
        (tiny_gguf(tensors=[("t", (1 << 60, 1 << 60), 0, 0)]), "cut short"),
    ],
)
def test_each_kind_of_broken_file_has_an_error_of_its_own(tmp_path: Path, data: bytes, words: str) -> None:
    with pytest.raises(GgufError) as caught:
        read(tmp_path, data)
    assert words in str(caught.value)
    assert "m.gguf" in str(caught.value)


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match="does not exist"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(GgufError, match="is a directory"):
        read_gguf(tmp_path)


@given(data=st.data())
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_change_of_bytes_gets_more_than_an_error(tmp_path: Path, data: st.DataObject) -> None:
    broken = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, len(broken) - 1))
        broken[place] = data.draw(st.sampled_from([0, 1, 7, 8, 9, 127, 128, 255]))
    cut = data.draw(st.integers(0, len(broken)))
    try:
        info = read(tmp_path, bytes(broken[:cut] if data.draw(st.booleans()) else broken))
    except GgufError:
        return
    assert info.architecture
