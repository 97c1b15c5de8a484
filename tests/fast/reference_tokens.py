"""Readable twin of the token estimate: characters one by one, and JSON decoded by the standard library."""

from __future__ import annotations

import json
from typing import Any

from blazar._fast.tokens import SCALE, costs

LOWER, UPPER, DIGIT, SPACE, LINE, MARK, TWO, THREE, FOUR = range(9)
COSTS = costs()
SILENT = ("role", "type", "id", "tool_call_id", "detail", "format", "media_type")


def kind_of(character: str) -> int:
    if "a" <= character <= "z":
        return LOWER
    if "A" <= character <= "Z":
        return UPPER
    if "0" <= character <= "9":
        return DIGIT
    if character in " \t":
        return SPACE
    if character in "\n\r":
        return LINE
    code = ord(character)
    return MARK if code < 0x80 else TWO if code < 0x800 else THREE if code < 0x10000 else FOUR


def cost(text: str) -> tuple[int, int]:
    """Cost, and characters beyond ASCII."""
    total, wide, before = 0, 0, LINE
    for character in text:
        kind = kind_of(character)
        total += COSTS[before][kind]
        wide += kind >= TWO
        before = kind
    return total, wide


def estimate_text(data: bytes) -> int:
    return -(-cost(data.decode())[0] // SCALE)


def estimate_json(value: bytes, every_byte: bool = False) -> tuple[int, int, int, int]:
    decoded = json.loads(value, object_pairs_hook=Pairs)
    items = len(decoded) if isinstance(decoded, list) else 0
    seen = {"cost": 0, "wide": 0, "images": 0}
    walk(decoded, "", seen)
    if every_byte:
        seen["cost"], seen["wide"] = cost(value.decode())
    return -(-seen["cost"] // SCALE), seen["wide"], seen["images"], items


class Pairs:
    """An object with every one of its fields, repeated names included."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


def walk(value: Any, role: str, seen: dict[str, int]) -> None:
    if isinstance(value, Pairs):
        for key, inner in value.pairs:
            walk(inner, role_of(key, role), seen)
    elif isinstance(value, list):
        for inner in value:
            if isinstance(inner, int | float) and not isinstance(inner, bool):
                seen["cost"] += SCALE
            else:
                walk(inner, role, seen)
    elif isinstance(value, str) and role != "silent":
        if role.startswith("image") or value.startswith("data:image/"):
            seen["images"] += 1
        else:
            total, wide = cost(value)
            seen["cost"] += total
            seen["wide"] += wide


def role_of(key: str, box: str) -> str:
    if key in SILENT:
        return "silent"
    if key == "image_url":
        return "image box"
    if key == "data" or (key == "url" and box == "image box"):
        return "image"
    return "images" if key == "images" else "text"
