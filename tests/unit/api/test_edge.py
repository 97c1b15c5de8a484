"""Pure parts of the edge: routes, Host guard, cross-origin rules; and the key ring."""

from __future__ import annotations

import hashlib

import pytest

from blazar.admission.keys import KeyRing, require_admin, require_scope
from blazar.api.edge import ROUTES
from blazar.api.guards import Cors, HostGuard, is_loopback
from blazar.base.errors import ApiError, Code
from blazar.config.schema import KeyConfig


class TestRoutes:
    @pytest.mark.parametrize(
        ("method", "path", "pattern"),
        [
            ("POST", "/v1/chat/completions", "/v1/chat/completions"),
            ("GET", "/v1/models", "/v1/models"),
            ("GET", "/v1/models/owner/name", "/v1/models/{id}"),
            ("HEAD", "/v1/models", "/v1/models"),
            ("POST", "/slots/0", "/slots/{id}"),
        ],
    )
    def test_finds(self, method: str, path: str, pattern: str) -> None:
        route = ROUTES.find(method, path)
        assert route is not None
        assert route.pattern == pattern

    @pytest.mark.parametrize(
        ("method", "path"), [("GET", "/v1/models/"), ("DELETE", "/v1/models"), ("GET", "/"), ("HEAD", "/tokenize")]
    )
    def test_does_not_find(self, method: str, path: str) -> None:
        assert ROUTES.find(method, path) is None

    def test_long_path_is_not_quoted_whole(self) -> None:
        assert len(str(ROUTES.missing("GET", "/" + "x" * 100_000))) < 400


class TestHostGuard:
    @pytest.mark.parametrize("host", ["", "localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:1", "127.0.0.2", "ok.lan"])
    def test_own_names_pass(self, host: str) -> None:
        HostGuard("127.0.0.2", ["ok.lan"]).check(host)

    @pytest.mark.parametrize(
        "host", ["evil.com", "localhost.evil.com", "127.0.0.1.evil.com", "evil.com:11435", "[::2]", "::1]:80"]
    )
    def test_others_are_refused(self, host: str) -> None:
        with pytest.raises(ApiError) as caught:
            HostGuard("127.0.0.1", []).check(host)
        assert caught.value.code is Code.HOST_FORBIDDEN

    def test_only_loopback_is_guarded(self) -> None:
        HostGuard("0.0.0.0", []).check("anything")
        assert all(is_loopback(host) for host in ("127.0.0.1", "::1", "localhost"))
        assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "a.b"))


class TestCors:
    def test_nobody_by_default(self) -> None:
        assert Cors([]).headers("http://a") == ()
        assert Cors([]).preflight("http://a", "GET") == []

    def test_listed_origins_are_echoed_and_any_is_a_star(self) -> None:
        assert dict(Cors(["http://a"]).headers("http://a"))[b"access-control-allow-origin"] == b"http://a"
        assert dict(Cors(["http://a"]).headers("http://a"))[b"vary"] == b"origin"
        assert Cors(["http://a"]).headers("http://b") == ()
        assert dict(Cors(["*"]).headers("http://b"))[b"access-control-allow-origin"] == b"*"
        assert dict(Cors(["*"]).preflight("http://b", "GET"))[b"access-control-allow-methods"] == b"GET"


class TestKeys:
    RING = KeyRing(
        [
            KeyConfig(name="boss", key="b"),
            KeyConfig(name="guest", key_hash=f"sha256:{hashlib.sha256(b'g').hexdigest()}", models=["m"]),
        ]
    )

    def test_identifies_by_bearer_else_by_x_api_key(self) -> None:
        assert self.RING.identify("Bearer b", "").name == "boss"
        assert self.RING.identify("bearer g", "b").name == "guest"
        assert self.RING.identify("Basic zzz", "b").name == "boss"
        for authorization, other in (("", ""), ("Bearer ", ""), ("Bearer x", "b"), ("b", ""), ("", "x")):
            with pytest.raises(ApiError) as caught:
                self.RING.identify(authorization, other)
            assert caught.value.code is Code.UNAUTHORIZED

    @pytest.mark.rule("R01")
    def test_no_keys_is_open(self) -> None:
        assert KeyRing([]).open
        assert KeyRing([]).identify("", "").admin

    def test_scope(self) -> None:
        boss, guest = self.RING.identify("Bearer b", ""), self.RING.identify("Bearer g", "")
        require_scope(boss, "anything")
        require_scope(guest, "m")
        require_admin(boss, "this")
        for refused in (lambda: require_scope(guest, "n"), lambda: require_admin(guest, "this")):
            with pytest.raises(ApiError) as caught:
                refused()
            assert caught.value.code is Code.KEY_SCOPE_FORBIDDEN
