"""The HTTP surface: routes, errors, guards, keys, limits."""

from __future__ import annotations

import hashlib
import json
import socket

import httpx
import pytest

from blazar.base.errors import Code
from tests.front.conftest import MODEL, GatewayFactory, Running

MIB = 1 << 20
LIMIT = 50 * MIB
KEYED = f"""
[[keys]]
name = "boss"
key = "boss-secret"
[[keys]]
name = "guest"
key_hash = "sha256:{hashlib.sha256(b"guest-secret").hexdigest()}"
models = ["other"]
"""


def talk(running: Running, data: bytes) -> tuple[int, bytes]:
    """Raw bytes in, status and everything out."""
    with socket.create_connection(("127.0.0.1", running.port), 20) as client:
        client.sendall(data)
        answer = b""
        while part := client.recv(65536):
            answer += part
    return int(answer[9:12] or 0), answer


def code_of(answer: httpx.Response) -> str:
    code: str = answer.json()["error"]["blazar_code"]
    return code


class TestRoutes:
    def test_health_readiness_and_errors(self, gateway: GatewayFactory) -> None:
        running = gateway()
        assert running.get("/healthz").json() == {"status": "ok"}
        assert running.get("/health").json() == {"status": "ok"}
        assert running.get("/readyz").json() == {"status": "ready"}
        listed = running.get("/api/errors").json()["errors"]
        assert {error["code"] for error in listed} == {code.name for code in Code}

    def test_every_answer_has_a_trace_id_of_its_own(self, gateway: GatewayFactory) -> None:
        running = gateway()
        answers = [running.get("/healthz"), running.get("/nope"), running.post(messages=[]), running.post(model="nope")]
        assert len({answer.headers["x-blazar-trace-id"] for answer in answers}) == 4

    def test_unknown_route_names_the_nearest(self, gateway: GatewayFactory) -> None:
        answer = gateway().get("/v1/chat/completion")
        assert (answer.status_code, code_of(answer)) == (404, "NOT_FOUND")
        assert "GET /v1/chat/completion" in answer.json()["error"]["message"]
        assert "/v1/chat/completions" in answer.json()["error"]["message"]
        assert answer.json()["error"]["type"] == "blazar_error"

    def test_wrong_method_says_which_are_right(self, gateway: GatewayFactory) -> None:
        answer = gateway().get("/v1/chat/completions")
        assert (answer.status_code, code_of(answer)) == (405, "METHOD_NOT_ALLOWED")
        assert answer.headers["allow"] == "OPTIONS, POST"

    def test_head_and_options(self, gateway: GatewayFactory) -> None:
        running = gateway()
        head = httpx.head(f"{running.url}/v1/models")
        assert (head.status_code, head.content) == (200, b"")
        options = httpx.options(f"{running.url}/v1/models")
        assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")

    def test_engine_utilities(self, gateway: GatewayFactory) -> None:
        running = gateway()
        assert running.get("/props").status_code == 400  # no model is named, and none is loaded
        cold = running.get(f"/props?model={MODEL}")
        assert (cold.status_code, code_of(cold)) == (503, "UNAVAILABLE")
        assert not running.seen("start")  # looking does not load
        assert running.post("/tokenize", content="a b c").json() == {"tokens": [0, 1, 2]}
        assert running.post("/detokenize", tokens=[1, 2]).json() == {"content": "1 2"}
        assert running.post("/apply-template", messages=[{"role": "user", "content": "hi"}]).json() == {"prompt": "hi"}
        assert running.get("/props").json()["model_alias"] == MODEL  # the only one that is loaded
        assert len(running.get("/slots", **{"x-blazar-model": MODEL}).json()) == 4

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"", "no body"),
            (b"{", "body"),
            (b"[1]", "object"),
            (b"{}", "model"),
            (b'{"model": 7}', "model"),
            (b'{"model":"a#1"}', "a#1"),
        ],
    )
    def test_bad_bodies_are_refused_by_name(self, gateway: GatewayFactory, body: bytes, words: str) -> None:
        answer = httpx.post(f"{gateway().url}/v1/chat/completions", content=body)
        assert answer.status_code in (400, 404)
        assert words in answer.json()["error"]["message"]

    def test_ps_and_evict(self, gateway: GatewayFactory) -> None:
        running = gateway()
        assert running.get("/api/ps").json() == {"models": []}
        running.post(messages=[])
        shown = running.get("/api/ps").json()["models"][0]
        assert (shown["name"], shown["state"], shown["in_flight"], shown["engine"]) == (MODEL, "ready", 0, "local")
        assert running.post("/api/evict").json() == {"evicted": True}
        assert running.get("/api/ps").json() == {"models": []}
        assert running.post("/api/evict").json() == {"evicted": False}


class TestGuards:
    def test_foreign_host_is_refused_on_loopback(self, gateway: GatewayFactory) -> None:
        running = gateway('allowed_hosts = ["gate.lan"]')
        bad = running.get("/v1/models", host="evil.example:11435")
        assert (bad.status_code, code_of(bad)) == (403, "HOST_FORBIDDEN")
        for host in ("localhost", f"127.0.0.1:{running.port}", "[::1]:1", "gate.lan", "GATE.LAN:80"):
            assert running.get("/v1/models", host=host).status_code == 200

    def test_no_origin_is_allowed_by_default(self, gateway: GatewayFactory) -> None:
        running = gateway()
        assert "access-control-allow-origin" not in running.get("/v1/models", origin="http://a.example").headers
        preflight = httpx.options(
            f"{running.url}/v1/models", headers={"origin": "http://a.example", "access-control-request-method": "GET"}
        )
        assert preflight.status_code == 204
        assert "access-control-allow-origin" not in preflight.headers

    def test_configured_origin_is_allowed_and_preflight_needs_no_secret(self, gateway: GatewayFactory) -> None:
        running = gateway(f'cors_origins = ["http://a.example"]\n{KEYED}')
        preflight = httpx.options(
            f"{running.url}/v1/chat/completions",
            headers={"origin": "http://a.example", "access-control-request-method": "POST"},
        )
        assert (preflight.status_code, preflight.content) == (204, b"")
        assert preflight.headers["access-control-allow-origin"] == "http://a.example"
        assert preflight.headers["access-control-allow-methods"] == "OPTIONS, POST"
        refused = running.get("/v1/models", origin="http://a.example")
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "http://a.example"
        assert "access-control-allow-origin" not in running.get("/v1/models", origin="http://b.example").headers

    def test_two_lengths_are_refused(self, gateway: GatewayFactory) -> None:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        status, _ = talk(gateway(), head + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x")
        assert status == 400


class TestKeys:
    def test_without_a_secret_only_health_answers(self, gateway: GatewayFactory) -> None:
        running = gateway(KEYED)
        assert running.get("/healthz").status_code == 200
        assert running.get("/health").status_code == 200
        for path in ("/", "/nope", "/v1/models", "/readyz", "/api/ps", "/props"):
            answer = running.get(path)
            assert (answer.status_code, code_of(answer)) == (401, "UNAUTHORIZED"), path

    def test_bearer_then_x_api_key(self, gateway: GatewayFactory) -> None:
        running = gateway(KEYED)
        assert running.get("/v1/models", authorization="Bearer boss-secret").status_code == 200
        assert running.get("/v1/models", **{"x-api-key": "boss-secret"}).status_code == 200
        assert (
            running.get("/v1/models", authorization="Bearer wrong", **{"x-api-key": "boss-secret"}).status_code == 401
        )
        assert running.get("/v1/models", authorization="Bearer").status_code == 401

    def test_scoped_key_sees_and_uses_its_models_only(self, gateway: GatewayFactory) -> None:
        running = gateway(KEYED)
        answer = running.post(secret="guest-secret", messages=[])
        assert (answer.status_code, code_of(answer)) == (403, "KEY_SCOPE_FORBIDDEN")
        assert running.get("/v1/models", authorization="Bearer guest-secret").json()["data"] == []
        evict = running.post("/api/evict", secret="guest-secret")
        assert (evict.status_code, code_of(evict)) == (403, "KEY_SCOPE_FORBIDDEN")
        assert not running.seen("start")

    def test_no_secret_is_in_any_log(self, gateway: GatewayFactory) -> None:
        running = gateway(KEYED)
        running.post(secret="boss-secret", messages=[])
        running.post(secret="wrong-secret", messages=[])
        running.stop()
        text = running.errors() + "".join(path.read_text() for path in running.dirs.log.rglob("*") if path.is_file())
        assert "boss-secret" not in text
        assert "wrong-secret" not in text
        lines = [json.loads(line) for line in (running.dirs.log / "access.jsonl").read_text().splitlines()]
        assert [line["key"] for line in lines if line["route"] == "/v1/chat/completions"] == ["boss", "anonymous"]


@pytest.mark.rule("L01")
class TestBodyLimit:
    def test_body_at_the_limit_passes(self, gateway: GatewayFactory) -> None:
        running = gateway()
        start = json.dumps({"model": MODEL, "messages": []}).encode()[:-1]
        body = start + b" " * (LIMIT - len(start) - 1) + b"}"
        assert httpx.post(f"{running.url}/v1/chat/completions", content=body, timeout=60).status_code == 200
        assert running.seen("request")[-1]["sha256"] == hashlib.sha256(body).hexdigest()

    def test_one_byte_more_is_refused_before_it_is_read(self, gateway: GatewayFactory) -> None:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (LIMIT + 1)
        with socket.create_connection(("127.0.0.1", gateway().port), 20) as client:
            client.sendall(head)
            answer = client.recv(65536)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"PAYLOAD_TOO_LARGE" in answer

    def test_sender_of_too_much_sees_the_answer(self, gateway: GatewayFactory) -> None:
        answer = httpx.post(f"{gateway().url}/v1/chat/completions", content=b" " * (LIMIT + 1), timeout=60)
        assert (answer.status_code, code_of(answer)) == (413, "PAYLOAD_TOO_LARGE")

    def test_chunked_body_is_refused_when_it_passes_the_limit(self, gateway: GatewayFactory) -> None:
        def parts():  # type: ignore[no-untyped-def]
            for _ in range(51):
                yield b" " * MIB

        answer = httpx.post(f"{gateway().url}/v1/chat/completions", content=parts(), timeout=60)
        assert (answer.status_code, code_of(answer)) == (413, "PAYLOAD_TOO_LARGE")

    def test_large_body_gets_its_model_name_spliced(self, gateway: GatewayFactory) -> None:
        running = gateway(serve=False)
        running.prepare(models=("a-b",))
        running.serve()
        body = b'{"messages": [], "pad": "' + b"x" * (2 * MIB) + b'", "model": "a:b"}'
        assert httpx.post(f"{running.url}/v1/chat/completions", content=body).status_code == 200
        seen = running.seen("request")[-1]
        assert seen["sha256"] == hashlib.sha256(body.replace(b"a:b", b"a-b")).hexdigest()


def test_slow_upload_is_ended(gateway: GatewayFactory) -> None:
    running = gateway("body_timeout_secs = 1")
    with socket.create_connection(("127.0.0.1", running.port), 20) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{")
        answer = client.recv(65536)
    assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.rule("B08")
def test_colon_in_a_models_name_finds_the_row_with_a_dash_and_nothing_else(gateway: GatewayFactory) -> None:
    running = gateway(serve=False)
    running.prepare(models=("llama3-8b", "exact:name"))
    running.serve()
    for asked, served in (("llama3:8b", "llama3-8b"), ("exact:name", "exact:name"), ("llama3-8b", "llama3-8b")):
        assert running.post(model=asked, messages=[]).json()["model"] == served
    missing = running.post(model="llama3:70b", messages=[])
    assert missing.status_code == 404
    assert "'llama3:70b'" in missing.json()["error"]["message"]


@pytest.mark.rule("B21")
def test_clients_cannot_choose_an_engine(gateway: GatewayFactory) -> None:
    running = gateway()
    headers = {"X-Blazar-Engine": "other", "X-Blazar-Kind": "mlx"}
    body = {"model": MODEL, "messages": [], "engine": "other", "kind": "mlx"}
    answer = httpx.post(f"{running.url}/v1/chat/completions?engine=other", json=body, headers=headers, timeout=20)
    assert answer.status_code == 200
    assert [model["engine"] for model in running.get("/api/ps").json()["models"]] == ["local"]
