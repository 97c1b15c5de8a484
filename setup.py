"""Builds the Cython kernels; everything else about the package is in pyproject.toml.

`BLAZAR_BUILD` chooses the mode: `release` (default), `debug` (bounds checks, no optimisation) or `asan` (debug with the
address sanitizer; run Python with libasan preloaded). Builds are for any x86-64 or arm64: no `-march`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

if sys.platform == "win32":
    sys.exit("Blazar does not run on Windows: its loop, uvloop, does not. Use WSL 2.")

MODES = ("release", "debug", "asan")
MODE = os.environ.get("BLAZAR_BUILD", "release")
if MODE not in MODES:
    sys.exit(f"BLAZAR_BUILD={MODE!r}: choose one of {', '.join(MODES)}")

CHECKED = MODE != "release"
COMPILE = {
    "release": ["-O3"],
    "debug": ["-O0", "-g"],
    "asan": ["-O1", "-g", "-fsanitize=address", "-fno-omit-frame-pointer"],
}
LINK = {"release": [], "debug": [], "asan": ["-fsanitize=address"]}

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": CHECKED,
    "wraparound": CHECKED,
    "initializedcheck": CHECKED,
    "cdivision": True,
    "binding": False,
    "embedsignature": True,
}

extensions = [
    Extension(
        f"blazar._fast.{source.stem}",
        [str(source)],
        extra_compile_args=[*COMPILE[MODE], "-Wno-unreachable-code"],
        extra_link_args=LINK[MODE],
    )
    for source in sorted(Path("blazar/_fast").glob("*.pyx"))
]

setup(ext_modules=cythonize(extensions, compiler_directives=DIRECTIVES, force=CHECKED))
