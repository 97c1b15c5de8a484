"""Admission with a real llama.cpp: its own counts, its own slots, its own cache."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engines.conftest import TINY, serving
from tests.front.conftest import Running, wait_until
from tests.support.tiny_model import tiny_model

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

CONFIG = """
[[keys]]
name = "k"
key = "s"

[model_overrides.tiny]
slots = 1
ctx = 2048

[model_overrides.two]
slots = 2
ctx = 2048
"""


@pytest.fixture(scope="module")
def running(fetched: tuple[Path, Path], cache_dir: Path) -> Iterator[Running]:
    """A gateway with the tiny model, once with one slot and once with two."""
    model = tiny_model(cache_dir)
    with serving(fetched[0], CONFIG, {TINY: model, "two": model}) as gateway:
        yield gateway


def chat(running: Running, text: str, **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": text}]
    return running.post(secret="s", **{"model": TINY, "messages": messages, "max_tokens": 8, **body})


def today(running: Running) -> dict[str, int]:
    found: dict[str, int] = running.get("/api/keys", authorization="Bearer s").json()["keys"][0]["today"]
    return found


@pytest.mark.case("C17")
@pytest.mark.parametrize("how", [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_use_is_what_the_engine_tells(running: Running, how: dict[str, Any]) -> None:
    told = chat(running, "Hello").json()["usage"]
    before = today(running)
    assert chat(running, "Hello", **how).status_code == 200
    after = today(running)
    assert after["prompt_tokens"] - before["prompt_tokens"] == told["prompt_tokens"]
    assert after["completion_tokens"] - before["completion_tokens"] == told["completion_tokens"] == 8


def test_embeddings_and_raw_completions_are_charged(running: Running) -> None:
    before = today(running)["tokens"]
    answer = running.post("/v1/completions", secret="s", model=TINY, prompt="Once upon a time", max_tokens=4)
    assert today(running)["tokens"] - before == answer.json()["usage"]["total_tokens"]


@pytest.mark.rule("L06")
@pytest.mark.case("C22")
def test_prompt_is_refused_by_the_engines_own_count(running: Running) -> None:
    chat(running, "warm")
    told = running.post("/tokenize", secret="s", model=TINY, content="word " * 5000).json()["tokens"]
    answer = chat(running, "word " * 5000)
    assert answer.json()["error"]["blazar_code"] == "PROMPT_TOO_LONG"
    message = answer.json()["error"]["message"]
    tokens = int(message.split("the prompt has ")[1].split()[0])
    assert len(told) < tokens < len(told) + 50  # the template's own beside them
    assert "context of 2048" in message


@pytest.mark.case("C22")
def test_prompt_that_is_certain_not_to_fit_starts_no_engine(running: Running) -> None:
    running.post("/api/evict", secret="s", model=TINY)
    answer = chat(running, "x" * 2_000_000)
    assert answer.json()["error"]["blazar_code"] == "PROMPT_TOO_LONG"
    assert "at least" in answer.json()["error"]["message"]
    loaded = running.get("/api/ps", authorization="Bearer s").json()["models"]
    assert TINY not in [model["name"] for model in loaded]


@pytest.mark.rule("B14")
@pytest.mark.parametrize("model", [TINY, "two"])
def test_duplicates_run_on_the_leaders_warm_prompt(running: Running, model: str) -> None:
    chat(running, "warm", model=model)
    text = f"{model}: " + "a long prompt of its own. " * 40

    def busy() -> bool:
        slots = running.get(f"/slots?model={model}", authorization="Bearer s").json()
        return any(slot["is_processing"] for slot in slots)

    with ThreadPoolExecutor(3) as pool:
        leader = pool.submit(chat, running, text, model=model, max_tokens=3)
        wait_until(busy, "the leader")
        others = [pool.submit(chat, running, text, model=model, max_tokens=3) for _ in range(2)]
        usages = [one.result().json()["usage"] for one in (leader, *others)]
    prompt = usages[0]["prompt_tokens"]
    assert prompt > 300
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages[1:]] == [prompt - 1] * 2
