"""The ASGI application: opens a request, dispatches it, renders its failure, logs its end.

Order of refusal: host, preflight, secret (R06: unknown routes too), route, drain. Everything after that is the way's
own.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from blazar.api import doctor, keys, views
from blazar.api.guards import Cors, HostGuard
from blazar.api.page import ASKS_FOR_KEY
from blazar.api.routes import Route, RouteTable
from blazar.base.errors import ApiError, BlazarError, Code
from blazar.dialects.errors import error_body
from blazar.flow.call import Call
from blazar.flow.gateway import Gateway
from blazar.flow.generate import generate
from blazar.flow.utility import utility
from blazar.observe.access import AccessRecord
from blazar.relay.client import Client, Receive, Send, Stage

log = logging.getLogger("blazar.edge")

BUSY_RETRY_S = 1
DRAIN_RETRY_S = 10  # a gateway that drains is gone, or back, after about this long

ROUTES = RouteTable(
    (
        Route("POST", "/v1/chat/completions", generate),
        Route("POST", "/v1/completions", generate),
        Route("POST", "/v1/embeddings", generate),
        Route("POST", "/tokenize", utility),
        Route("POST", "/detokenize", utility),
        Route("POST", "/apply-template", utility),
        Route("GET", "/props", utility),
        Route("POST", "/props", utility),
        Route("GET", "/slots", utility),
        Route("POST", "/slots/{id}", utility),
        Route("GET", "/v1/models", views.list_models),
        Route("GET", "/v1/models/{id}", views.show_model),
        Route("GET", "/api/ps", views.running),
        Route("POST", "/api/evict", views.evict),
        Route("GET", "/api/errors", views.list_errors),
        Route("GET", "/api/doctor", doctor.doctor, always=True),
        Route("GET", "/api/keys", keys.list_keys),
        Route("POST", "/api/keys", keys.add),
        Route("DELETE", "/api/keys", keys.remove),
        Route("POST", "/api/keys/rotate", keys.rotate),
        Route("GET", "/metrics", views.metrics, always=True),
        Route("GET", "/healthz", views.healthz, public=True, always=True),
        Route("GET", "/health", views.healthz, public=True, always=True),
        Route("GET", "/readyz", views.readyz, always=True),
    )
)

SERVER = (b"server", b"blazar")


def is_browser(call: Call) -> bool:
    """Whether somebody has typed the gateway's address into a browser."""
    return call.path == "/" and call.method in ("GET", "HEAD") and "text/html" in call.header(b"accept")


class Edge:
    """The application that granian calls for every request.

    Args:
        gateway: the services.
        host_guard: of the bound address.
        cors: of the configuration.
        routes: the table to dispatch on.
    """

    def __init__(self, gateway: Gateway, host_guard: HostGuard, cors: Cors, routes: RouteTable = ROUTES) -> None:
        self._gateway = gateway
        self.host_guard = host_guard
        self.cors = cors
        self._routes = routes
        self._prefix = os.urandom(4).hex()
        self._numbers = itertools.count(1)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        started = time.perf_counter()
        call = Call(scope, f"{self._prefix}{next(self._numbers):08x}")
        client = Client(receive, send, call.trace_id)
        live = self._gateway.stalls.live
        live.add(client)
        code = ""
        try:
            try:
                await self._serve(call, client)
            except asyncio.CancelledError:
                interrupt = client.interrupted()
                if interrupt is None:
                    raise
                raise interrupt from None
        except ApiError as error:
            code = error.code.name
            await self._fail(call, client, error)
        except BlazarError as error:  # of a service below: readable, but no fault of the request's
            code = Code.INTERNAL.name
            log.error("request %s failed: %s", call.trace_id, error)
            await self._fail(call, client, ApiError(Code.INTERNAL, error.message, error.remedy))
        except Exception:
            log.exception("request %s failed", call.trace_id)
            code = Code.INTERNAL.name
            await self._fail(call, client, ApiError(Code.INTERNAL, f"the gateway failed on request {call.trace_id}"))
        finally:
            client.finish()
            live.discard(client)
            self._log(call, client, code, time.perf_counter() - started)

    async def _serve(self, call: Call, client: Client) -> None:
        origin = call.header(b"origin")
        client.extra_headers = (SERVER, *self.cors.headers(origin)) if origin else (SERVER,)
        self.host_guard.check(call.header(b"host"))
        if call.method == "OPTIONS" and b"access-control-request-method" in call.headers:
            await client.respond(204, self.cors.preflight(origin, self._routes.allow(call.path)), b"")
            return
        route = self._open(call)
        if route is None:
            await client.respond(204, ((b"allow", self._routes.allow(call.path).encode()),), b"")
            return
        await route.handler(self._gateway, call, client)

    def _open(self, call: Call) -> Route | None:
        """Who asks, and for which route. None: an OPTIONS that only asks which methods there are."""
        route = self._routes.find(call.method, call.path)
        if route is not None:
            call.route = route.pattern
        if route is None or not route.public:
            call.key = self._gateway.keys.identify(call.header(b"authorization"), call.header(b"x-api-key"))
        if route is None:
            if call.method == "OPTIONS" and self._routes.methods(call.path):
                return None
            raise self._routes.missing(call.method, call.path)
        if self._gateway.draining and not route.always:
            raise ApiError(Code.UNAVAILABLE, "the gateway is shutting down", retry_after_s=DRAIN_RETRY_S)
        limit = self._gateway.config.max_streams
        if len(self._gateway.stalls.live) > limit and not route.always:
            raise ApiError(
                Code.UNAVAILABLE, f"max_streams = {limit} requests are under way", retry_after_s=BUSY_RETRY_S
            )
        return route

    async def _fail(self, call: Call, client: Client, error: ApiError) -> None:
        """Answer with the error, unless the client has left or has had the beginning of another answer."""
        if client.left or client.started:
            return
        asks = error.code is Code.UNAUTHORIZED and is_browser(call)
        body = ASKS_FOR_KEY if asks else error_body(error)
        kind = b"text/html; charset=utf-8" if asks else b"application/json"
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *error.headers]
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        if error.code is Code.METHOD_NOT_ALLOWED:
            headers.append((b"allow", self._routes.allow(call.path).encode()))
        if error.code is Code.UNAUTHORIZED:
            headers.append((b"www-authenticate", b"Bearer"))
        unread = client.stage is Stage.BODY and call.has_body
        await client.respond(error.code.status, headers, body)
        if unread:
            await client.linger()

    def _log(self, call: Call, client: Client, code: str, seconds: float) -> None:
        status = Code.CLIENT_CLOSED.status if client.left else client.status
        known = call.model if call.model in self._gateway.models.rows else "remote" if ":" in call.model else ""
        self._gateway.metrics.requests[call.route or "other", known, call.key.label, status] += 1
        self._gateway.access.add(
            AccessRecord(
                at=time.time(),
                trace=call.trace_id,
                method=call.method,
                route=call.route or "other",
                status=status,
                key=call.key.label,
                ms=round(seconds * 1000, 3),
                model=call.model,
                code=code,
            )
        )
