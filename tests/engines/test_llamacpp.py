"""The main job with a real llama.cpp: the official client, leaving, crashing, and a model that knows something."""

from __future__ import annotations

import asyncio
import os
import signal
import string
import subprocess
import sys
from typing import Any

import openai
import pytest

from tests.engines.conftest import SMOL, TINY
from tests.front.conftest import Running, wait_until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]

HELLO: Any = [{"role": "user", "content": "Hello"}]
FRANCE: Any = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]
CHAPTER = 1500  # tokens: long enough to still run when something happens to it
PRINTABLE = set(string.printable)


@pytest.fixture
def client(running: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def tiny_slots(running: Running) -> list[dict[str, Any]]:
    slots: list[dict[str, Any]] = running.get(f"/slots?model={TINY}").json()
    return slots


def test_client_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=TINY, messages=HELLO, max_tokens=16)
    assert answer.model == TINY
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert set(answer.choices[0].message.content or "") <= PRINTABLE


def test_client_streams(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=TINY, messages=HELLO, max_tokens=16, stream=True, stream_options={"include_usage": True}
        )
    )
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == ["length"]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 16


def test_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": TINY, "messages": HELLO, "max_tokens": 32, "temperature": 0}
    whole = client.chat.completions.create(**asked).choices[0].message.content
    chunks = client.chat.completions.create(**asked, stream=True)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == whole


async def test_eight_streams_at_once_are_all_complete(running: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:

        async def one() -> list[str]:
            stream = await client.chat.completions.create(model=TINY, messages=HELLO, max_tokens=64, stream=True)
            return [choice.finish_reason async for chunk in stream for choice in chunk.choices if choice.finish_reason]

        assert await asyncio.gather(*(one() for _ in range(8))) == [["length"]] * 8


def test_client_completes(client: openai.OpenAI) -> None:
    assert client.completions.create(model=TINY, prompt="The", max_tokens=8).choices[0].text


def test_text_survives_the_tokenizer(running: Running) -> None:
    tokens = running.post("/tokenize", model=TINY, content="the value of 🦊").json()["tokens"]
    assert running.post("/detokenize", model=TINY, tokens=tokens).json()["content"] == "the value of 🦊"


def test_prompt_longer_than_the_context_is_refused_with_both_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="and a slot of tiny has a context of 2048") as caught:
        client.chat.completions.create(model=TINY, messages=[{"role": "user", "content": "value " * 5000}])
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["blazar_code"] == "PROMPT_TOO_LONG"


@pytest.mark.case("C12")
def test_engine_stops_when_its_client_leaves(client: openai.OpenAI, running: Running) -> None:
    stream = client.chat.completions.create(model=TINY, messages=HELLO, max_tokens=CHAPTER, stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: running.in_flight() == 0, "the lease to come back")
    wait_until(lambda: not any(slot["is_processing"] for slot in tiny_slots(running)), "idle slots")


def test_killed_engine_is_told_in_the_stream_and_the_next_request_has_another(
    client: openai.OpenAI, running: Running
) -> None:
    stream = client.chat.completions.create(model=TINY, messages=HELLO, max_tokens=CHAPTER, stream=True)
    chunks = iter(stream)
    next(chunks)
    engine = next(model["pid"] for model in running.get("/api/ps").json()["models"] if model["name"] == TINY)
    os.kill(engine, signal.SIGKILL)
    with pytest.raises(openai.APIError) as caught:
        list(chunks)
    assert "SIGKILL" in str(caught.value)
    assert client.chat.completions.create(model=TINY, messages=HELLO, max_tokens=4).choices[0].message.content


def test_smollm2_says_paris(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=SMOL, messages=FRANCE, temperature=0, max_tokens=32)
    assert "Paris" in (answer.choices[0].message.content or "")


def test_run_says_paris(running: Running) -> None:
    assert "Paris" in ask(running, SMOL, "--temperature", "0", "What is the capital of France?")


def test_run_takes_its_prompt_from_a_pipe(running: Running) -> None:
    assert ask(running, SMOL, "--max-tokens", "4", pipe="Say hello.").strip()


def ask(running: Running, *words: str, pipe: str | None = None) -> str:
    argv = [sys.executable, "-m", "blazar", "run", "--host", running.url, *words]
    done = subprocess.run(argv, env=running.env, input=pipe, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
