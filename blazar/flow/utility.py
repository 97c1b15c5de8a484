"""The way of a request to an engine's own tools: tokenize, detokenize, apply-template, props, slots.

The body belongs to the engine. Which model is meant comes from `X-Blazar-Model`, else from `?model=`, else from the
body's `model`; where nothing says it and exactly one model is loaded, that one is meant.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from blazar.admission.budget import Need
from blazar.admission.keys import require_admin, require_scope
from blazar.base.errors import ApiError, Code
from blazar.flow.ask import decode_ask
from blazar.flow.call import Call
from blazar.flow.charge import Charge
from blazar.flow.engine import close_exchange, open_exchange
from blazar.flow.gateway import Gateway
from blazar.relay.client import Client
from blazar.relay.exchange import EngineRequest


async def utility(gateway: Gateway, call: Call, client: Client) -> None:
    """Serve one. A POST may load the model, and counts as a request of its key; a GET only looks and does neither
    (SPEC §8).

    Raises:
        ApiError: as generate; UNAVAILABLE where a GET asks about a model that is not loaded.
    """
    if call.method != "POST":
        await serve(gateway, call, client)
        return
    if call.route in ("/props", "/slots/{id}", "/slots"):
        require_admin(call.key, f"POST {call.route}")
    account = gateway.ledger.account(call.key)
    account.enter()
    try:
        charge = Charge(gateway.ledger, gateway.metrics, account, Need(0, 0))
        try:
            await serve(gateway, call, client)
        finally:
            charge.settle(call.model)
    finally:
        account.leave()


async def serve(gateway: Gateway, call: Call, client: Client) -> None:
    """Find out which model is meant, and let its engine answer."""
    body = await client.read_body(call.content_length, gateway.body_limit)

    query = parse_qsl(call.query, keep_blank_values=True)
    asked = call.header(b"x-blazar-model") or dict(query).get("model", "") or model_in(body) or only_loaded(gateway)
    model = await gateway.models.resolve(asked)
    call.model = model.name
    require_scope(call.key, model.name)
    rest = urlencode([pair for pair in query if pair[0] != "model"])
    request = EngineRequest(call.method, f"{call.path}?{rest}" if rest else call.path, [body] if body else [])

    lease = gateway.supervisor.try_lease(model.name)
    if lease is None:
        if call.method != "POST":
            raise ApiError(
                Code.UNAVAILABLE, f"model {model.name!r} is not loaded, and looking at it does not load it",
                "send it a request first",
            )  # fmt: skip
        lease = await gateway.supervisor.lease(model.name)
    exchange = open_exchange(lease, client)
    try:
        await exchange.relay(request)
    finally:
        close_exchange(exchange, lease, client, lease.release)


def model_in(body: bytes | bytearray) -> str:
    """The body's `model`, "" where there is none."""
    return decode_ask(body).model or "" if body else ""


def only_loaded(gateway: Gateway) -> str:
    """The one model that is loaded.

    Raises:
        ApiError: BAD_REQUEST, there is not exactly one.
    """
    loaded = [child.model for child in gateway.supervisor.stats() if child.state in ("ready", "busy")]
    if len(loaded) == 1:
        return loaded[0]
    raise ApiError(
        Code.BAD_REQUEST,
        f"the request names no model, and {len(loaded)} models are loaded",
        "name one with the header X-Blazar-Model or with ?model=",
    )
