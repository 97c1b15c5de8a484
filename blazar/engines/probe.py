"""Asks an engine's binary what it is: that it starts at all, its version, and every flag that it knows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

from blazar.base.errors import CommandError
from blazar.base.records import Manifest

PROBE_TIMEOUT_S = 30.0
MAX_OUTPUT = 1 << 20
LAST_WORDS = 300
FLAG_LINE = re.compile(r"^\s{0,12}(-{1,2}[A-Za-z][\w.-]*.*)$")
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")


def probe(binary: Path) -> Manifest:
    """What the binary says of itself.

    Raises:
        CommandError: it does not start, does not end, or names no flags; with its own last words.
    """
    version = _run(binary, "--version").strip().splitlines()
    flags = parse_flags(_run(binary, "--help"))
    if not flags:
        raise CommandError(
            f"{binary.name} --help names no flags: it is not an engine's server", "give the path of llama-server"
        )
    return Manifest(version=version[0][:200] if version else "unknown", flags=flags)


def parse_flags(text: str) -> tuple[str, ...]:
    """Every flag that a help text lists, sorted.

    A line lists flags if it starts with one; the text after two blanks describes it.
    """
    found: set[str] = set()
    for line in text.splitlines():
        if match := FLAG_LINE.match(line):
            found.update(_listed(match[1]))
    return tuple(sorted(found))


def _listed(entry: str) -> list[str]:
    """The flags at the start of an entry: `-ngl,  --gpu-layers, --n-gpu-layers N   number of …`."""
    flags = []
    rest = entry
    while match := FLAG.match(rest):
        flags.append(match[0])
        rest = rest[match.end() :]
        comma = re.match(r"\s*,\s*", rest)
        if comma is None:
            break
        rest = rest[comma.end() :]
    return flags


def _run(binary: Path, flag: str) -> str:
    try:
        done = subprocess.run(
            [str(binary), flag],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_TIMEOUT_S,
            env=probe_env(),
            cwd=binary.parent,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise CommandError(
            f"{binary.name} {flag} did not end within {PROBE_TIMEOUT_S:g} s: it is not an engine's server"
        ) from None
    except OSError as error:
        raise CommandError(f"{binary.name} does not start: {error.strerror}", _os_remedy(error)) from error
    text = done.stdout[:MAX_OUTPUT].decode("utf-8", "replace")
    if done.returncode:
        raise CommandError(
            f"{binary.name} {flag} failed: {_reason(done.returncode, text)}", _exit_remedy(done.returncode, text)
        )
    return text


def probe_env() -> dict[str, str]:
    """The environment without what would change the engine's answers."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "BLAZAR_"))}


def _reason(status: int, text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1][:LAST_WORDS] if lines else "it printed nothing"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}; {last}"
    return f"exit status {status}; {last}"


def _exit_remedy(status: int, text: str) -> str:
    if status == -signal.SIGILL:
        return "this build needs a newer processor: build one here and install it with --from PATH"
    if "shared librar" in text or "GLIBC" in text:
        return "install the library that it names, or use a build for this system"
    return "run it by hand to see more"


def _os_remedy(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "make the file executable: chmod +x"
    return "give a build for this machine's processor and system"
