"""The gate on speed: how many times faster than its Python twin each kernel is, against a floor.

    pytest benches --benchmark-only --benchmark-json=FILE && python benches/gate.py FILE

A ratio within one run holds on a shared machine, where a time does not. Exit 1 where a ratio is below its floor, where
a bench has no floor, or where a floor has no bench: the names are compared, so that none can vanish unseen.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

# Floors are about half of what was measured when they were set: they catch a kernel that has lost its point, not the
# weather.
FLOORS = {
    "test_bucket_check": 50.0,
    "test_bucket_take": 100.0,
    "test_heap_push_pop": 40.0,
    "test_token_estimate": 60.0,
    "test_http1_answer": 1.0,
    "test_http1_burst": 80.0,
    "test_http1_chunk": 15.0,
    "test_relay_chunk": 40.0,
    "test_spans_image": 30.0,
    "test_spans_long": 2.0,
    "test_spans_small": 5.0,
    "test_sse_burst": 400.0,
    "test_sse_chunk": 200.0,
    "test_sse_usage": 0.1,
}


class Stats(msgspec.Struct):
    """Of a bench's rounds, in seconds."""

    median: float


class Bench(msgspec.Struct):
    """One bench of the run."""

    name: str
    stats: Stats
    extra_info: dict[str, int]


class Run(msgspec.Struct):
    """What pytest-benchmark writes."""

    benchmarks: list[Bench]


def ratios(run: Run) -> dict[str, float]:
    """Reference time divided by kernel time, by bench: the parameter in brackets tells the two sides apart."""
    times: dict[str, dict[str, float]] = {}
    for bench in run.benchmarks:
        name, _, parameters = bench.name.removesuffix("]").partition("[")
        side = "kernel" if "kernel" in parameters.split("-") else "reference"
        rest = "-".join(part for part in parameters.split("-") if part not in ("kernel", "reference"))
        full = f"{name}[{rest}]" if rest else name
        times.setdefault(full, {})[side] = bench.stats.median / bench.extra_info.get("chunks", 1)
    return {name: sides["reference"] / sides["kernel"] for name, sides in times.items() if len(sides) == 2}


def main(path: str) -> int:
    """Print every ratio with its floor; returns the exit status."""
    found = ratios(msgspec.json.decode(Path(path).read_bytes(), type=Run))
    failed = False
    for name in sorted({*found, *FLOORS}):
        ratio, floor = found.get(name), FLOORS.get(name)
        if ratio is None:
            verdict = "no such bench ran, but it has a floor"
        elif floor is None:
            verdict = f"{ratio:.1f}x, but it has no floor"
        else:
            verdict = f"{ratio:.1f}x, floor {floor:g}x" + ("" if ratio >= floor else ": TOO SLOW")
        failed = failed or ratio is None or floor is None or ratio < floor
        print(f"{name}: {verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
