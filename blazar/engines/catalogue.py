"""Engine builds that the Python package registry carries, pinned by SHA-256, by kind and platform."""

from __future__ import annotations

import msgspec

from blazar.base.errors import UsageError
from blazar.base.records import EngineKind
from blazar.sources.pypi import WheelPin


class EngineBuild(msgspec.Struct, frozen=True, kw_only=True):
    """A build: the wheel, and what makes a server of it."""

    pin: WheelPin
    launcher: str  # module of blazar.engines.launchers that is put beside the wheel's content, as `llama-server`
    tag: str


def _xllamacpp(filename: str, sha256: str, size_bytes: int) -> EngineBuild:
    """llama.cpp's own server as a library.

    Of the registry's builds the one that runs on every processor of its kind.
    """
    version = "2026.10.11549"
    pin = WheelPin(
        package="xllamacpp",
        version=version,
        filename=f"xllamacpp-{version}-cp310-abi3-{filename}.whl",
        sha256=sha256,
        size_bytes=size_bytes,
    )
    return EngineBuild(pin=pin, launcher="llama_server", tag="llamacpp-b11549")


BUILDS: dict[tuple[EngineKind, str, str], EngineBuild] = {
    (EngineKind.LLAMACPP, "linux", "x86_64"): _xllamacpp(
        "manylinux2014_x86_64.manylinux_2_17_x86_64",
        "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261",
        33827498,
    ),
    (EngineKind.LLAMACPP, "linux", "aarch64"): _xllamacpp(
        "manylinux2014_aarch64.manylinux_2_17_aarch64",
        "e2a3e79e775515de4ad197e667f874070446ef9ac9cf2044bc9866bc4c72289e",
        32870844,
    ),
    (EngineKind.LLAMACPP, "darwin", "arm64"): _xllamacpp(
        "macosx_13_0_arm64",
        "4ecda27a308b2403aa13c9d04b270befab95edc556c24ed00b2f8a98bd7f6781",
        12152949,
    ),
}


def find_build(kind: EngineKind, system: str, machine: str) -> EngineBuild:
    """The pinned build for a platform.

    Args:
        kind: of the engine.
        system: as `sys.platform`.
        machine: as `platform.machine()`.

    Raises:
        UsageError: there is none.
    """
    build = BUILDS.get((kind, system, machine))
    if build is None:
        have = ", ".join(f"{known} for {on} {cpu}" for known, on, cpu in BUILDS)
        raise UsageError(
            f"the registry has no pinned {kind} build for {system} {machine} (it has: {have})",
            f"build the engine yourself, then: blazar engine install --kind {kind} --from PATH",
        )
    return build
