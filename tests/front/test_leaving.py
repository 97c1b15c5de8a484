"""Clients that leave (C12), engines that break off, and what is released."""

from __future__ import annotations

import json
import signal
import socket
import threading
from typing import Any

import httpx
import pytest

from tests.front.conftest import MODEL, STREAM_HEAD, GatewayFactory, Running, chunked, event_stream, wait_until

OPEN = ["raw", f"{STREAM_HEAD}Transfer-Encoding: chunked\r\n\r\n"]
LAST = [["chunk", "data: [DONE]\n\n"], ["raw", "0\r\n\r\n"]]
FIRST = ["chunk", 'data: {"choices":[{"delta":{"content":"one"}}]}\n\n']


def ask(running: Running, **body: Any) -> socket.socket:
    """A raw request whose connection the test closes itself."""
    data = json.dumps({"model": MODEL, **body}).encode()
    client = socket.create_connection(("127.0.0.1", running.port), 20)
    client.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data)
    )
    return client


def read_until(client: socket.socket, word: bytes) -> bytes:
    """What has come, up to the word and perhaps some more."""
    data = b""
    while word not in data:
        part = client.recv(65536)
        assert part, data
        data += part
    return data


def events_of(answer: httpx.Response) -> list[Any]:
    return [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")]


@pytest.mark.case("C12")
@pytest.mark.parametrize("stream", [True, False])
def test_engine_learns_that_its_client_has_left(gateway: GatewayFactory, stream: bool) -> None:
    running = gateway()
    script = [OPEN, FIRST, ["until", "never"]] if stream else [["until", "never"]]
    client = ask(running, stream=stream, script=script)
    running.wait_seen("request")
    if stream:
        read_until(client, b"one")
    client.close()
    running.wait_seen("left")
    wait_until(lambda: running.in_flight() == 0, "the lease to come back")
    assert running.post(messages=[]).status_code == 200


@pytest.mark.case("C12")
def test_client_that_leaves_during_a_cold_load_holds_nothing(gateway: GatewayFactory) -> None:
    running = gateway(start={"load_until": "loaded"})
    client = ask(running, messages=[])
    running.wait_seen("start")
    client.close()
    log = running.dirs.log / "access.jsonl"
    wait_until(lambda: log.exists() and '"CLIENT_CLOSED"' in log.read_text(), "the leaving in the access log")
    running.go("loaded")
    assert running.post(messages=[]).status_code == 200
    assert len(running.seen("start")) == 1
    assert len(running.seen("request")) == 1


@pytest.mark.case("C12")
def test_engine_that_cannot_be_aborted_is_drained(gateway: GatewayFactory) -> None:
    running = gateway(f'[model_overrides.{MODEL}]\non_abort = "drain"')
    client = ask(running, stream=True, script=[OPEN, FIRST, ["until", "go"], *LAST])
    read_until(client, b"one")
    client.close()
    log = running.dirs.log / "access.jsonl"
    wait_until(lambda: log.exists() and '"CLIENT_CLOSED"' in log.read_text(), "the leaving in the access log")
    assert running.in_flight() == 1
    running.go("go")
    running.wait_seen("done")
    assert not running.seen("left")
    wait_until(lambda: running.in_flight() == 0, "the lease to come back")


def test_broken_stream_ends_with_an_error_in_its_own_stream(gateway: GatewayFactory) -> None:
    running = gateway()
    answer = running.post(stream=True, script=[OPEN, FIRST, ["close"]])
    assert answer.status_code == 200
    assert events_of(answer)[-1]["error"]["blazar_code"] == "BAD_GATEWAY"
    assert "[DONE]" not in answer.text
    assert running.in_flight() == 0


def test_stream_that_ends_without_its_last_frame_is_told(gateway: GatewayFactory) -> None:
    answer = gateway().post(stream=True, script=chunked(event_stream('{"choices":[]}', tail="")))
    assert events_of(answer)[-1]["error"]["blazar_code"] == "BAD_GATEWAY"


def test_error_that_breaks_into_a_frame_starts_a_new_one(gateway: GatewayFactory) -> None:
    answer = gateway().post(stream=True, script=[OPEN, ["chunk", 'data: {"choi'], ["close"]])
    assert answer.text.startswith('data: {"choi\n\ndata: {"error"')


def test_engine_that_told_its_own_error_is_not_corrected(gateway: GatewayFactory) -> None:
    text = event_stream('{"error":{"message":"engine says no"}}', tail="")
    assert gateway().post(stream=True, script=chunked(text)).text == text


def test_crash_before_the_answer_is_a_502_in_the_engines_own_words(gateway: GatewayFactory) -> None:
    running = gateway()
    answer = running.post(script=[["stderr", "GGML_ASSERT(n_tokens > 0) failed"], ["exit", -signal.SIGABRT]])
    error = answer.json()["error"]
    assert (answer.status_code, error["blazar_code"]) == (502, "ENGINE_CRASHED")
    assert "GGML_ASSERT(n_tokens > 0) failed" in error["message"]
    assert "SIGABRT" in error["message"]
    again = running.post(messages=[])
    assert again.status_code == 200
    assert len(running.seen("start")) == 2


def test_crash_in_a_stream_is_told_in_the_stream(gateway: GatewayFactory) -> None:
    running = gateway()
    answer = running.post(stream=True, script=[OPEN, FIRST, ["stderr", "CUDA error: out of memory"], ["exit", 1]])
    error = events_of(answer)[-1]["error"]
    assert error["blazar_code"] == "ENGINE_CRASHED"
    assert "CUDA error: out of memory" in error["message"]
    assert "[DONE]" not in answer.text


def test_crash_in_the_middle_of_a_small_answer_is_a_true_502(gateway: GatewayFactory) -> None:
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    answer = gateway().post(script=[["raw", f'{head}{{"half":'], ["exit", 3]])
    assert answer.status_code == 502


def test_engine_that_dies_while_loading_says_why(gateway: GatewayFactory) -> None:
    running = gateway(
        start={"stderr": "llama_model_load: error loading model: unknown model architecture: 'foo'", "exit": 1}
    )
    error = running.post(messages=[]).json()["error"]
    assert error["blazar_code"] == "ENGINE_CRASHED"
    assert "unknown model architecture: 'foo'" in error["message"]
    running.set_start({})
    assert running.post(messages=[]).status_code == 200


def test_garbage_from_the_engine_is_a_bad_gateway(gateway: GatewayFactory) -> None:
    answer = gateway().post(script=[["raw", "SMTP 220 hello\r\n\r\n"], ["close"]])
    assert (answer.status_code, answer.json()["error"]["blazar_code"]) == (502, "BAD_GATEWAY")


def test_requests_at_once_share_one_start(gateway: GatewayFactory) -> None:
    running = gateway(start={"load_until": "loaded"})
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(running.post(messages=[]).status_code)) for _ in range(8)]
    for thread in threads:
        thread.start()
    running.wait_seen("start")
    running.go("loaded")
    for thread in threads:
        thread.join()
    assert answers == [200] * 8
    assert len(running.seen("start")) == 1


def test_stalled_stream_is_ended_with_the_error(gateway: GatewayFactory) -> None:
    running = gateway("stream_idle_timeout_secs = 1")
    answer = running.post(stream=True, script=[OPEN, FIRST, ["until", "never"]])
    assert events_of(answer)[-1]["error"]["blazar_code"] == "GATEWAY_TIMEOUT"
    running.wait_seen("left")


def test_engine_without_headers_is_a_504(gateway: GatewayFactory) -> None:
    running = gateway("child_header_timeout_secs = 1")
    answer = running.post(script=[["until", "never"]])
    assert (answer.status_code, answer.json()["error"]["blazar_code"]) == (504, "GATEWAY_TIMEOUT")


def test_reader_that_does_not_read_stops_the_engine(gateway: GatewayFactory) -> None:
    """Backpressure: what is sent to nobody stays in the engine. 64 MB do not fit into any buffer on the way."""
    running = gateway()
    frame = f'data: {{"x":"{"y" * 65000}"}}\n\n'
    client = ask(running, stream=True, script=[OPEN, ["repeat", 1000, "chunk", frame], *LAST])
    received = bytearray(client.recv(1024))
    before = resident_mb(running.pid)
    running.wait_seen("request")
    other = running.post(messages=[])
    assert other.status_code == 200
    assert len(running.seen("done")) == 1  # the other one: this stream's engine still waits
    assert resident_mb(running.pid) - before < 16
    while b"[DONE]" not in received[-100:]:
        data = client.recv(1 << 20)
        assert data
        received += data
    client.close()
    assert received.partition(b"\r\n\r\n")[2].count(b"y") == 65_000_000


def resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))
