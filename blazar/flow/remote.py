"""The way of a request to a remote: `name:model` (R05). The client's key gates the client; the remote sees `model` and
its own bearer.
"""

from __future__ import annotations

from blazar.admission.budget import DEFAULT_COMPLETION, Need
from blazar.admission.keys import require_scope
from blazar.base.errors import ApiError, Code
from blazar.flow.ask import with_model
from blazar.flow.charge import Charge
from blazar.flow.gateway import Gateway
from blazar.flow.job import Job
from blazar.relay.exchange import EngineRequest, Exchange
from blazar.relay.remote import Member

FAILED = frozenset((502, 503, 504))  # statuses with which a member says that it cannot, and another one may


async def serve_remote(gateway: Gateway, job: Job, name: str, model: str) -> None:
    """Serve it by a member of the remote's pool; by another one where the first fails before its first byte.

    Raises:
        ApiError: refused, or none of the members answered.
    """
    job.call.model = f"{name}:{model}"
    require_scope(job.call.key, job.call.model)
    longest = DEFAULT_COMPLETION if job.longest is None else job.longest
    charge = Charge(gateway.ledger, gateway.metrics, job.account, Need(job.prompt, longest))
    try:
        tried: set[int] = set()
        failure: ApiError | None = None
        while (member := gateway.remotes.choose(name, gateway.ledger.moment().now, tried)) is not None:
            tried.add(id(member))
            try:
                await ask_member(gateway, job, member, name, model, charge)
            except ApiError as error:
                if job.client.started or job.client.left:
                    raise
                failure = error
            else:
                return
        assert failure is not None  # a pool has a member at least
        raise failure
    finally:
        charge.settle(job.call.model)


async def ask_member(gateway: Gateway, job: Job, member: Member, name: str, model: str, charge: Charge) -> None:
    """Let one member answer."""
    pool = member.pool

    async def explain(reason: str) -> ApiError:
        return ApiError(Code.BAD_GATEWAY, f"the remote {name} broke off: {reason}", "look at the remote, then retry")

    exchange = Exchange(pool, job.client, explain)
    member.in_flight += 1
    try:
        parts = await with_model(job.body, job.asked, model)
        request = EngineRequest(job.call.method, pool.target(job.call.path), parts)
        headers = ((b"x-blazar-remote", name.encode()), *job.account.headers(gateway.ledger.moment()))
        await exchange.relay(request, headers, refused=FAILED)
    finally:
        charge.spent = exchange.spent(job.prompt)
        exchange.close(drain_s=0.0, done=lambda: None)
        member.in_flight -= 1
        if exchange.status and exchange.status not in FAILED:
            member.on_answer()
        elif not job.client.left:
            member.on_failure(gateway.ledger.moment().now)
