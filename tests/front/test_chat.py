"""The main job through the front door: the official client, byte truth, model names."""

from __future__ import annotations

import hashlib
import json

import httpx
import openai
import pytest

from tests.front.conftest import MODEL, STREAM_HEAD, GatewayFactory, Running, chunked, encoded, event_stream

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TALE = event_stream(
    '{"choices":[{"delta":{"content":"🦊 лиса 狐狸 é"}}]}', '{"choices":[{"delta":{"content":"\\u00e9nd"}}]}'
)


@pytest.fixture
def client(gateway: GatewayFactory) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway().url}/v1", api_key="none", max_retries=0)


@pytest.mark.rule("R01")
def test_open_gateway_serves_chat_without_a_secret(gateway: GatewayFactory) -> None:
    answer = gateway().post(messages=QUESTION)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "The capital is Paris."


def test_official_client_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert answer.choices[0].message.content == "The capital is Paris."
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_official_client_streams(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "The capital is Paris."
    assert chunks[-1].usage is not None


async def test_official_async_client_streams(gateway: GatewayFactory) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway().url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == "The capital is Paris."


def test_official_client_completes(client: openai.OpenAI) -> None:
    assert client.completions.create(model=MODEL, prompt="The").choices[0].text == "The capital is Paris."


def test_official_client_embeds(client: openai.OpenAI) -> None:
    assert client.embeddings.create(model=MODEL, input=["a", "b"]).data[1].embedding == [0.5, -0.5, 0.5, 0.5]


def test_official_client_is_told_of_an_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="script", messages=QUESTION)
    assert caught.value.body["blazar_code"] == "MODEL_NOT_FOUND"  # type: ignore[index]
    assert MODEL in caught.value.message


def test_official_client_lists_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 5, 7, 64])
@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_stream_reaches_the_client_byte_for_byte(gateway: GatewayFactory, framing: str, cut: int) -> None:
    data = TALE.encode()
    if framing == "chunked":
        script = [
            ["raw", f"{STREAM_HEAD}Transfer-Encoding: chunked\r\n\r\n"],
            ["cut", cut],
            ["chunk", TALE],
            ["raw", "0\r\n\r\n"],
        ]
    elif framing == "length":
        script = [["raw", f"{STREAM_HEAD}Content-Length: {len(data)}\r\n\r\n"], ["cut", cut], encoded(data)]
    else:
        script = [["raw", f"{STREAM_HEAD}Connection: close\r\n\r\n"], ["cut", cut], encoded(data), ["close"]]
    answer = gateway().post(stream=True, script=script)
    assert hashlib.sha256(answer.content).hexdigest() == hashlib.sha256(data).hexdigest()


def test_large_stream_is_not_altered(gateway: GatewayFactory) -> None:
    events = [json.dumps({"choices": [{"delta": {"content": f"{number} " + "x" * 5000}}]}) for number in range(200)]
    text = event_stream(*events)
    assert gateway().post(stream=True, script=chunked(text)).content == text.encode()


def test_engine_refusals_pass_unchanged(gateway: GatewayFactory) -> None:
    body = b'{"error":{"code":400,"message":"no","type":"invalid_request_error"}}'
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = gateway().post(script=[["raw", head], encoded(body)])
    assert (answer.status_code, answer.content) == (400, body)


@pytest.mark.case("C30")
class TestFraming:
    """Towards the engine there is exactly one right length, and nothing of the client's connection."""

    def names(self, running: Running) -> list[str]:
        return [line.partition(":")[0].lower() for line in running.wait_seen("request")[-1]["head"][1:]]

    def test_hop_by_hop_headers_stay_behind(self, gateway: GatewayFactory) -> None:
        running = gateway()
        headers = {
            "Connection": "keep-alive, x-hop",
            "X-Hop": "1",
            "TE": "trailers",
            "Authorization": "Bearer client-secret",
        }
        httpx.post(f"{running.url}/v1/chat/completions", json={"model": MODEL, "messages": QUESTION}, headers=headers)
        names = self.names(running)
        assert not {"connection", "x-hop", "te", "transfer-encoding"} & set(names)
        assert names.count("content-length") == 1
        assert "client-secret" not in json.dumps(running.seen("request"))

    def test_chunked_request_arrives_with_one_length(self, gateway: GatewayFactory) -> None:
        running = gateway()
        body = json.dumps({"model": MODEL, "messages": QUESTION}).encode()
        answer = httpx.post(f"{running.url}/v1/chat/completions", content=iter([body[:9], body[9:]]))
        assert answer.status_code == 200
        seen = running.wait_seen("request")[-1]
        assert (seen["size"], seen["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
        assert self.names(running).count("content-length") == 1

    def test_rewritten_model_name_has_the_right_length(self, gateway: GatewayFactory, short_tmp: object) -> None:
        running = gateway(serve=False)
        running.prepare(models=("owner-model-Q4",))
        running.serve()
        body = '{"x": [1, {"model": "keep"}], "model" : "owner-model:Q4", "messages": [], "model":"owner-model:Q4"}'
        answer = httpx.post(f"{running.url}/v1/chat/completions", content=body)
        assert answer.status_code == 200
        seen = running.wait_seen("request")[-1]
        assert seen["body"] == body.replace("owner-model:Q4", "owner-model-Q4")
        assert seen["size"] == len(seen["body"])
