"""What the estimate of a prompt's tokens costs."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from blazar._fast import tokens
from tests.fast import reference_tokens as reference

ENGLISH = (Path(__file__).parent / "texts/english.txt").read_text()
BODY = json.dumps([{"role": "user", "content": ENGLISH} for _ in range(32)]).encode()  # 64 KiB


@pytest.mark.parametrize("module", [tokens, reference], ids=["kernel", "reference"])
def test_token_estimate(benchmark: BenchmarkFixture, module: ModuleType) -> None:
    """A chat of 64 KiB in English."""
    assert benchmark(module.estimate_json, BODY)[0] > 10_000
