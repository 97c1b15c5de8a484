"""The way of a request that runs a model, top to bottom.

body → ask → model → scope → lease (spawn, wake or wait) → engine → relay → account → release
"""

from __future__ import annotations

from blazar.admission.keys import require_scope
from blazar.base.errors import ApiError, Code
from blazar.flow.ask import read_ask, with_model
from blazar.flow.call import Call
from blazar.flow.gateway import Gateway
from blazar.relay.client import Client
from blazar.relay.exchange import EngineRequest, Exchange
from blazar.relay.pool import EnginePool
from blazar.supervisor import Lease

CRASH_WAIT_S = 1.0  # how long a broken connection waits for word that its engine has died
DRAIN_S = 600.0  # how long an engine that cannot take an abort may go on for nobody


async def generate(gateway: Gateway, call: Call, client: Client) -> None:
    """Serve a request that the engine itself understands (same dialect).

    Raises:
        ApiError: refused, failed or left; the edge renders it where nothing has been sent yet.
    """
    body = await client.read_body(call.content_length, gateway.body_limit)

    ask = await read_ask(body)
    if not ask.model:
        raise ApiError(Code.BAD_REQUEST, "the request names no model: set the field `model`", gateway.models.hint())
    model = await gateway.models.resolve(ask.model)
    call.model = model.name
    require_scope(call.key, model.name)
    request = EngineRequest(call.method, call.path, await with_model(body, ask.model, model.name))
    del body  # the request has it, and lets go of it when it has been sent

    lease = gateway.supervisor.try_lease(model.name) or await gateway.supervisor.lease(model.name)
    await forward(lease, client, request)


async def forward(lease: Lease[EnginePool], client: Client, request: EngineRequest) -> None:
    """Let the leased engine answer; the lease is released when the engine is free of the request, however it ends."""
    exchange = Exchange(lease.client, client, lambda reason: explain(lease, reason))
    try:
        await exchange.relay(request)
    finally:
        drains = client.left and lease.child.plan.on_abort == "drain"
        exchange.close(drain_s=DRAIN_S if drains else 0.0, done=lease.release)


async def explain(lease: Lease[EnginePool], reason: str) -> ApiError:
    """What to tell a client whose engine's side broke.

    That the engine died, in its own words, or just that it broke.
    """
    plan = lease.child.plan
    cause = await lease.child.wait_gone(CRASH_WAIT_S)
    if cause is None:
        return ApiError(Code.BAD_GATEWAY, f"the engine {plan.tag} serving {plan.model} broke off: {reason}")
    return ApiError(
        Code.ENGINE_CRASHED, f"the engine {plan.tag} serving {plan.model} died ({cause.kind}): {cause.words}"
    )
