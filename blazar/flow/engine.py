"""One exchange with a leased engine: what its client is told when it breaks, and when it is free of the request."""

from __future__ import annotations

from collections.abc import Callable

from blazar.base.errors import ApiError, Code
from blazar.relay.client import Client
from blazar.relay.exchange import Exchange
from blazar.relay.pool import EnginePool
from blazar.supervisor import Lease

CRASH_WAIT_S = 1.0  # how long a broken connection waits for word that its engine has died
DRAIN_S = 600.0  # how long an engine that cannot take an abort may go on for nobody


def open_exchange(lease: Lease[EnginePool], client: Client) -> Exchange:
    """An exchange with the leased engine, to be closed by close_exchange however it ends."""
    return Exchange(lease.client, client, lambda reason: explain(lease, reason))


def close_exchange(exchange: Exchange, lease: Lease[EnginePool], client: Client, done: Callable[[], None]) -> None:
    """The request is over. Never waits.

    Args:
        exchange: its exchange.
        lease: the engine's.
        client: who asked.
        done: called once, when the engine is free of the request: later than now where it cannot take an abort.
    """
    drains = client.left and lease.child.plan.on_abort == "drain"
    exchange.close(drain_s=DRAIN_S if drains else 0.0, done=done)


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
