"""A model made on the spot: a llama of 4 layers with seeded random weights, which a real engine loads in milliseconds.

It knows nothing and says printable ASCII: the tokens that are not, and the special ones, are muted, so that an answer
is always valid UTF-8 and always as long as it was asked to be.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

import gguf
import numpy as np

WIDTH = 256  # every row a multiple of 256, so that all kinds of quantization apply
LAYERS = 4
HEADS = 8
FEED_FORWARD = 512
VOCABULARY = 1024
CONTEXT = 2048
SEED = 7
COMMON_WORDS = 1500
MUTE_AXIS = 0  # the one axis of the hidden state that no layer writes; it is the same positive number for every token
MUTED = -60.0
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_model(cache: Path) -> Path:
    """The model's file, made where the cache does not have it. A change of this module makes another one."""
    recipe = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    path = cache / f"tiny-{recipe}.gguf"
    if not path.exists():
        partial = path.with_suffix(".part")
        write(partial)
        partial.rename(path)
    return path


def byte_letters() -> list[str]:
    """The letter that stands for each byte in GPT-2's vocabulary: itself where it can be seen, else one above
    U+0100.
    """
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return [chr(byte) if byte in seen else chr(next(hidden)) for byte in range(256)]


def merges(count: int) -> Iterator[tuple[str, str]]:
    """The commonest pairs, one after the other, in the standard library's own documentation (byte-pair encoding)."""
    letters = byte_letters()
    found = Counter(re.findall(r" ?[A-Za-z]+| ?[^\sA-Za-z]+", " ".join(topics.values()))).most_common(COMMON_WORDS)
    words = [([letters[byte] for byte in word.encode()], times) for word, times in found]
    for _ in range(count):
        pairs: Counter[tuple[str, str]] = Counter()
        for parts, times in words:
            for pair in zip(parts, parts[1:], strict=False):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        yield best
        for parts, _ in words:
            at = 0
            while at < len(parts) - 1:
                if (parts[at], parts[at + 1]) == best:
                    parts[at : at + 2] = ["".join(best)]
                at += 1


def write(path: Path) -> None:
    """Write the file."""
    letters = byte_letters()
    joined = list(merges(VOCABULARY - len(letters) - len(SPECIAL)))
    tokens = [*letters, *("".join(pair) for pair in joined), *SPECIAL]
    out = gguf.GGUFWriter(path, "llama")
    out.add_name("tiny")
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(FEED_FORWARD)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(VOCABULARY)
    out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types([gguf.TokenType.NORMAL] * (VOCABULARY - len(SPECIAL)) + [gguf.TokenType.CONTROL] * len(SPECIAL))
    out.add_token_merges([" ".join(pair) for pair in joined])
    out.add_bos_token_id(VOCABULARY - len(SPECIAL))
    out.add_eos_token_id(VOCABULARY - 1)
    out.add_add_bos_token(False)
    out.add_chat_template(TEMPLATE)
    for name, tensor in tensors(tokens):
        out.add_tensor(name, tensor)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def tensors(tokens: list[str]) -> Iterator[tuple[str, np.ndarray]]:
    """The weights, from a fixed seed."""
    random = np.random.default_rng(SEED)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return random.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))

    def half(weights: np.ndarray) -> np.ndarray:
        return weights.astype(np.float16)

    def adding(columns: int) -> np.ndarray:
        """What a layer adds to the hidden state: nothing on the mute axis."""
        weights = matrix(WIDTH, columns)
        weights[MUTE_AXIS] = 0
        return half(weights)

    embedding = random.standard_normal((VOCABULARY, WIDTH), dtype=np.float32)
    embedding[:, MUTE_AXIS] = 4.0
    yield "token_embd.weight", half(embedding)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", np.ones(WIDTH, np.float32)
        for part in ("attn_q", "attn_k", "attn_v"):
            yield f"{block}.{part}.weight", half(matrix(WIDTH, WIDTH))
        yield f"{block}.attn_output.weight", adding(WIDTH)
        yield f"{block}.ffn_norm.weight", np.ones(WIDTH, np.float32)
        yield f"{block}.ffn_gate.weight", half(matrix(FEED_FORWARD, WIDTH))
        yield f"{block}.ffn_up.weight", half(matrix(FEED_FORWARD, WIDTH))
        yield f"{block}.ffn_down.weight", adding(FEED_FORWARD)
    yield "output_norm.weight", np.ones(WIDTH, np.float32)
    output = 3 * matrix(VOCABULARY, WIDTH)
    output[:, MUTE_AXIS] = [0.0 if is_said(token) else MUTED for token in tokens]
    yield "output.weight", half(output)


def is_said(token: str) -> bool:
    """Whether the token is printable ASCII, spaces among it (U+0120 stands for the space)."""
    return token not in SPECIAL and all("!" <= letter <= "~" or letter == "\u0120" for letter in token)
