"""The way of a request that runs a model, top to bottom.

lease → body → ask → for each model that it may mean:
    model → scope → budget → preflight → duplicates → queue → child (spawn, wake or wait) → engine → relay → account

Whatever is held is released in `finally`; a refusal burns nothing.
"""

from __future__ import annotations

import asyncio

import xxhash

from blazar.admission.budget import DEFAULT_COMPLETION, Account, Need
from blazar.admission.keys import require_scope
from blazar.admission.ticket import Work, read_number, read_ticket
from blazar.base.errors import ApiError, Code
from blazar.base.records import ModelRow
from blazar.flow.ask import LARGE_BYTES, NO_ASK, decode_ask, estimate, read_ask, with_model
from blazar.flow.call import Call
from blazar.flow.charge import Charge
from blazar.flow.engine import close_exchange, open_exchange
from blazar.flow.gates import Gate, Slot
from blazar.flow.gateway import Gateway
from blazar.flow.job import Job
from blazar.flow.preflight import check_cold, check_warm, is_near
from blazar.flow.remote import serve_remote
from blazar.flow.singleflight import Seat
from blazar.relay.client import Client
from blazar.relay.exchange import EngineRequest
from blazar.relay.pool import EnginePool
from blazar.supervisor import Lease, Outlook

MAX_NUM_CTX = 1 << 31
digest_of = xxhash.xxh3_128_digest  # 128 bits: two requests that differ never share one

CHAT, RAW, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"

# What another model may be able to do (aliases with fallbacks); a fault of the request itself it cannot mend.
FALLS_BACK = frozenset(
    (
        Code.MODEL_NOT_FOUND, Code.MODEL_UNSUPPORTED_ENGINE, Code.MODEL_LOAD_TIMEOUT, Code.ENGINE_CIRCUIT_OPEN,
        Code.ALL_SLOTS_BUSY, Code.MODEL_TOO_LARGE, Code.INSUFFICIENT_MEMORY, Code.ENGINE_CRASHED,
        Code.PROMPT_TOO_LONG, Code.KEY_SCOPE_FORBIDDEN, Code.GATEWAY_TIMEOUT, Code.BAD_GATEWAY,
    )
)  # fmt: skip


async def generate(gateway: Gateway, call: Call, client: Client) -> None:
    """Serve a request that the engine itself understands (same dialect).

    Raises:
        ApiError: refused, failed or left; the edge renders it where nothing has been sent yet.
    """
    account = gateway.ledger.account(call.key)
    account.enter()  # B01: before anything else, and held until the answer has been taken or the client is gone
    try:
        job = await read_job(gateway, call, client, account)
        if job.asked in gateway.config.aliases:
            await try_in_turn(gateway, job)
        else:
            await serve(gateway, job, job.asked, last=True)
    finally:
        account.leave()


async def read_job(gateway: Gateway, call: Call, client: Client, account: Account) -> Job:
    """The request's body, and what it says."""
    body = await client.read_body(call.content_length, gateway.body_limit)
    ask = decode_ask(body) if len(body) <= LARGE_BYTES else await read_ask(body)
    if not ask.model:
        raise ApiError(Code.BAD_REQUEST, "the request names no model: set the field `model`", gateway.models.hint())
    prompt = estimate(ask) if len(body) <= LARGE_BYTES else await asyncio.to_thread(estimate, ask)
    limits, header = call.key.limits, call.header
    ticket = read_ticket(
        key=call.key.name,
        weight=limits.weight,
        best=limits.max_priority,
        priority=header(b"x-blazar-priority"),
        deadline_ms=header(b"x-blazar-deadline-ms"),
        body_bytes=len(body),
        work=Work.RAW if call.route == RAW else Work.TOOL if ask.has_tools else Work.CHAT,
    )
    num_ctx = read_number("X-Blazar-Num-Ctx", header(b"x-blazar-num-ctx"), MAX_NUM_CTX, "tokens")
    longest = 0 if call.route == EMBEDDINGS else ask.longest_answer
    return Job(call, client, account, body, ask, ask.model, prompt.tokens, prompt.most, longest, ticket, num_ctx)


async def try_in_turn(gateway: Gateway, job: Job) -> None:
    """What an alias means; of several the first that can, before the first byte only.

    Raises:
        ApiError: of the last one that was tried.
    """
    *others, last = gateway.models.targets(job.asked, gateway.config.aliases)
    for name in others:
        try:
            await serve(gateway, job, name, last=False)
        except ApiError as error:
            if job.client.started or job.client.left or error.code not in FALLS_BACK:
                raise
        else:
            return
    await serve(gateway, job, last, last=True)


async def serve(gateway: Gateway, job: Job, name: str, *, last: bool) -> None:
    """Serve it by one model; the last one to try lets go of the body when it has been sent."""
    if (remote := gateway.remotes.split(name)) is not None:
        await serve_remote(gateway, job, *remote)
        return
    model = gateway.models.find(name) or await gateway.models.resolve(name)
    job.call.model = model.name
    require_scope(job.call.key, model.name)

    outlook = gateway.supervisor.outlook(model.name) or await gateway.supervisor.expect(model.name)
    if gateway.config.prompt_preflight and job.longest != 0:
        ctx = context_of(job, outlook.ctx)
        if not outlook.ready or is_near(job.most, ctx):
            await preflight(gateway, job, model, outlook, ctx)

    if job.ask.stream or job.call.route != CHAT or not gateway.config.singleflight:
        await admit(gateway, job, model, outlook, None, last=last)
        return
    body = job.body
    digest = digest_of(body) if len(body) <= LARGE_BYTES else await asyncio.to_thread(digest_of, body)
    identity = (job.call.key.name, model.name, job.num_ctx, digest)
    seat = gateway.flights.board(identity)
    try:
        if not seat.leads:
            check_budget(gateway, job, outlook)
            how = await seat.wait(shares=gateway.config.singleflight_share and job.ask.repeatable)
            gateway.metrics.duplicates[how] += 1
        await admit(gateway, job, model, outlook, seat, last=last)
    finally:
        gateway.flights.leave(identity, seat)


def check_budget(gateway: Gateway, job: Job, outlook: Outlook) -> None:
    """Before anything that takes time: a request over its budget is not to wait for its refusal, nor an engine to work
    for it.

    Raises:
        ApiError: RATE_LIMITED.
    """
    job.account.check(gateway.ledger.moment(), need_of(job, outlook))


def need_of(job: Job, outlook: Outlook) -> Need:
    """The tokens to reserve: of the prompt, and of an answer that is no longer than the context has room for."""
    if job.longest == 0:
        return Need(job.prompt, 0)
    room = context_of(job, outlook.ctx) - job.prompt
    longest = job.longest or DEFAULT_COMPLETION
    return Need(job.prompt, longest if longest <= room else max(1, room))


def context_of(job: Job, ctx: int) -> int:
    """The context that the request is held to: the slot's, or less where the client wants less."""
    return min(ctx, job.num_ctx) if job.num_ctx else ctx


async def preflight(gateway: Gateway, job: Job, model: ModelRow, outlook: Outlook, ctx: int) -> None:
    """Refuse a prompt that does not fit, as far as that can be known before the queue (L06, C22).

    Raises:
        ApiError: PROMPT_TOO_LONG.
    """
    check_budget(gateway, job, outlook)
    if not outlook.ready:
        await check_cold(gateway.models, model, job.ask, ctx)
    elif (lease := gateway.supervisor.try_lease(model.name)) is not None:
        try:
            await measure(job, model, lease, ctx)
        finally:
            lease.release()


async def measure(job: Job, model: ModelRow, lease: Lease[EnginePool], ctx: int) -> None:
    """Let the engine count a prompt that might not fit.

    Raises:
        ApiError: PROMPT_TOO_LONG.
    """
    tokens = await check_warm(lease.client, model.name, job.ask, ctx)
    if tokens is not None:
        job.prompt = job.most = tokens


async def admit(
    gateway: Gateway, job: Job, model: ModelRow, outlook: Outlook, seat: Seat | None, *, last: bool
) -> None:
    """Commit the budget, wait for a slot, run. What it has cost is settled however it ends.

    Raises:
        ApiError: RATE_LIMITED; the queue is full, or the wait over; or what `run` raises.
    """
    charge = Charge(gateway.ledger, gateway.metrics, job.account, need_of(job, outlook))
    try:
        if seat is not None and seat.answer is not None:  # its tokens are paid for, by the one that got it first
            await job.client.respond(seat.answer.status, seat.answer.headers, seat.answer.body)
            return
        gate = gateway.gates.of(model.name, gateway.config)
        gate.set_slots(outlook.slots)
        try:
            slot = gate.enter(job.ticket)
            if not slot.granted:
                await gate.wait(slot, gateway.config.queue_wait_secs)
        except ApiError:
            charge.refuse()
            raise
        lease = gateway.supervisor.try_lease(model.name) or await lease_of(gateway, gate, slot, model.name)
        slot.lease = lease
        await run(gateway, job, model, slot, lease, charge, seat, was_cold=not outlook.ready, last=last)
    finally:
        charge.settle(model.name)


async def lease_of(gateway: Gateway, gate: Gate, slot: Slot, model: str) -> Lease[EnginePool]:
    """A lease on the model's child, which is started or waited for; without one the slot is free.

    Raises:
        ApiError: it cannot be loaded. Those who wait for a slot wait for the same start, and hear of it too.
    """
    try:
        lease = await gateway.supervisor.lease(model)
    except BaseException as error:
        if isinstance(error, ApiError):
            gate.fail(error)
        slot.release()
        raise
    gate.set_slots(lease.child.slots)
    return lease


async def run(
    gateway: Gateway,
    job: Job,
    model: ModelRow,
    slot: Slot,
    lease: Lease[EnginePool],
    charge: Charge,
    seat: Seat | None,
    *,
    was_cold: bool,
    last: bool,
) -> None:
    """Let the engine answer. What is held is given back when the engine is free of the request."""
    exchange = open_exchange(lease, job.client)
    try:
        if was_cold and gateway.config.prompt_preflight and job.longest != 0:
            ctx = context_of(job, lease.child.ctx)
            if is_near(job.most, ctx):
                await measure(job, model, lease, ctx)
        body = await with_model(job.body, job.asked, model.name)
        if last:
            job.body, job.ask = b"", NO_ASK  # the request has it, and lets go of it when it has been sent
        if seat is not None:
            seat.on_engine(lease)
        at = charge.at if slot.at_once else gateway.ledger.moment()
        headers = (slot.header, *job.account.headers(at))
        await exchange.relay(EngineRequest(job.call.method, job.call.path, body), headers)
        if seat is not None:
            seat.on_answer(exchange.answer)
    finally:
        charge.spent = exchange.spent(job.prompt)
        close_exchange(exchange, lease, job.client, slot.release)
