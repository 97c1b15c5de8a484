"""Answers that the gateway gives by itself: health, models, errors, what runs."""

from __future__ import annotations

from typing import Any

import msgspec

from blazar.admission.keys import ANONYMOUS, Key, require_admin, require_scope
from blazar.admission.queue import AdmissionQueue
from blazar.base.errors import ApiError, Code
from blazar.base.records import ModelRow
from blazar.flow.call import Call
from blazar.flow.exposition import CONTENT_TYPE, exposition
from blazar.flow.gateway import Gateway
from blazar.relay.client import Client

JSON = ((b"content-type", b"application/json"),)
RETRY_WHEN_NOT_READY_S = 1

_encode = msgspec.json.Encoder().encode


async def respond_json(client: Client, value: Any, status: int = 200) -> None:
    """Answer with a JSON value."""
    body = _encode(value)
    await client.respond(status, (*JSON, (b"content-length", b"%d" % len(body))), body)


async def healthz(gateway: Gateway, call: Call, client: Client) -> None:
    """Liveness: the process answers."""
    await respond_json(client, {"status": "ok"})


async def readyz(gateway: Gateway, call: Call, client: Client) -> None:
    """Readiness: 503 with the reasons while starting or draining."""
    reasons = ["draining"] if gateway.draining else [gateway.not_ready] if gateway.not_ready else []
    if reasons:
        raise ApiError(
            Code.UNAVAILABLE, f"not ready: {', '.join(reasons)}", retry_after_s=RETRY_WHEN_NOT_READY_S
        )  # fmt: skip
    await respond_json(client, {"status": "ready"})


def model_card(row: ModelRow) -> dict[str, Any]:
    """A model as OpenAI's list shows it, with what Blazar knows beside it."""
    return {
        "id": row.name,
        "object": "model",
        "created": int(row.added_at),
        "owned_by": "blazar",
        "meta": {
            "architecture": row.architecture,
            "n_ctx_train": row.ctx_train,
            "n_params": row.parameters,
            "size": row.size_bytes,
            "quant": row.quant,
        },
    }


async def list_models(gateway: Gateway, call: Call, client: Client) -> None:
    """The models that the key may use (R07)."""
    await gateway.models.refresh()
    rows = sorted(gateway.models.rows.values(), key=lambda row: row.name)
    cards = [model_card(row) for row in rows if call.key.may_use(row.name)]
    listed = {row.name: row for row in rows if call.key.may_use(row.name)}
    for alias in sorted(gateway.config.aliases):
        target = next((n for n in gateway.models.targets(alias, gateway.config.aliases) if n in listed), None)
        if target is not None and alias not in listed:
            cards.append({**model_card(listed[target]), "id": alias})
    cards += [
        {"id": name, "object": "model", "created": 0, "owned_by": name.partition(":")[0]}
        for name in gateway.remotes.models()
        if call.key.may_use(name)
    ]
    await respond_json(client, {"object": "list", "data": cards})


async def show_model(gateway: Gateway, call: Call, client: Client) -> None:
    """One model."""
    name = call.path.removeprefix("/v1/models/")
    row = await gateway.models.resolve(gateway.models.targets(name, gateway.config.aliases)[0])
    call.model = row.name
    require_scope(call.key, row.name)
    card = model_card(row)
    await respond_json(client, card | {"id": name} if name in gateway.config.aliases else card)


async def list_errors(gateway: Gateway, call: Call, client: Client) -> None:
    """Every stable code with its status and remedy."""
    codes = [{"code": code.name, "status": code.status, "remedy": code.remedy} for code in Code]
    await respond_json(client, {"errors": codes})


async def metrics(gateway: Gateway, call: Call, client: Client) -> None:
    """Prometheus' text format. It shows all keys' doings, so it is the admin's (R07)."""
    require_admin(call.key, "/metrics")
    body = exposition(gateway.metrics, gateway.gates.all(), gateway.ledger, gateway.supervisor.stats())
    await client.respond(200, ((b"content-type", CONTENT_TYPE.encode()), (b"content-length", b"%d" % len(body))), body)


async def running(gateway: Gateway, call: Call, client: Client) -> None:
    """What is loaded, in Ollama's shape with Blazar's fields beside it."""
    shown = []
    now = gateway.ledger.moment().now
    gates = gateway.gates.all()
    for child in gateway.supervisor.stats():
        if not call.key.may_use(child.model):
            continue
        row = gateway.models.rows.get(child.model)
        gate = gates.get(child.model)
        shown.append(
            {
                "name": child.model,
                "model": child.model,
                "size": row.size_bytes if row else 0,
                "digest": row.sha256 if row else "",
                "engine": child.tag,
                "kind": child.kind,
                "state": child.state,
                "ctx": child.ctx,
                "slots": child.slots,
                "in_flight": child.in_flight,
                "pid": child.pid,
                "port": child.port,
                "restarts": child.restarts,
                **(show_queue(gate.queue, call.key, now) if gate is not None else NO_QUEUE),
            }
        )
    await respond_json(client, {"models": shown})


NO_QUEUE = {"queued": 0, "oldest_wait_s": 0.0, "deadline_missed": 0, "queue": []}
MAX_SHOWN = 64  # waiters of one model that are listed; `queued` counts all


def show_queue(queue: AdmissionQueue, key: Key, now: float) -> dict[str, Any]:
    """A queue as `/api/ps` shows it: whose requests wait is for admins, and for each key its own."""
    stats = queue.stats(now)
    waiting = [
        {
            "place": place,
            "key": waiter.key or ANONYMOUS.label,
            "priority": waiter.priority,
            "age_s": round(waiter.age_s, 3),
            "due_in_s": round(waiter.due_in_s, 3),
        }
        for place, waiter in enumerate(queue.waiting(now), 1)
        if key.admin or waiter.key == key.name
    ]
    return {
        "queued": stats.depth,
        "oldest_wait_s": round(stats.oldest_wait_s, 3),
        "deadline_missed": stats.deadline_missed,
        "queue": waiting[:MAX_SHOWN],
    }


class EvictAsk(msgspec.Struct):
    """Body of POST /api/evict."""

    model: str


_decode_evict = msgspec.json.Decoder(EvictAsk).decode
EVICT_DRAIN_S = 10.0


async def evict(gateway: Gateway, call: Call, client: Client) -> None:
    """Unload a model: what it is answering is finished first, for at most EVICT_DRAIN_S."""
    require_admin(call.key, "evicting")
    try:
        ask = _decode_evict(await client.read_body(call.content_length, gateway.body_limit))
    except msgspec.DecodeError as error:
        raise ApiError(Code.BAD_REQUEST, f'the body has to be {{"model": NAME}}: {error}') from error
    model = await gateway.models.resolve(ask.model)
    call.model = model.name
    await respond_json(client, {"evicted": await gateway.supervisor.evict(model.name, drain_s=EVICT_DRAIN_S)})
