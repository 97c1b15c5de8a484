"""What admission costs a request on the processor, from its secret to its slot and back: the median, in microseconds.

    python benches/admission_cost.py

A key with every limit, among 10 000 keys; a free slot; a chat of a kilobyte. Everything but the engine: the key's
look-up, lease, body, estimate, ticket, budget, queue, settling.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from pathlib import Path

import uvloop

from blazar.admission.budget import Need
from blazar.admission.keys import KeyRing
from blazar.admission.ticket import Work, read_ticket
from blazar.base.clock import SystemClock
from blazar.config.schema import Config, KeyConfig
from blazar.flow.ask import decode_ask, estimate
from blazar.flow.charge import Charge
from blazar.flow.gates import Gates
from blazar.observe.ledger import Ledger
from blazar.observe.metrics import Metrics
from blazar.store.store import Store

CONFIG = Config()
ROUNDS, LAPS, KEYS = 200, 100, 10_000
BODY = json.dumps(
    {
        "model": "m",
        "stream": True,
        "max_tokens": 200,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": "What is the capital of France, and why is it not Lyon? " * 16},
        ],
    }
).encode()


def keys(count: int) -> KeyRing:
    """Keys with every limit."""
    return KeyRing(
        KeyConfig(
            name=f"k{n}",
            key_hash=f"sha256:{hashlib.sha256(f's{n}'.encode()).hexdigest()}",
            rpm=10**9, tpm=10**12, daily_tokens=10**12, max_concurrent=100, weight=3,
        )
        for n in range(count)
    )  # fmt: skip


async def measure(count: int, secret: str) -> float:
    """Median of the rounds' means, in seconds of processor time."""
    ring, metrics, clock = keys(count), Metrics(), SystemClock()
    with Store.open(Path(":memory:")) as store:
        ledger = Ledger(store, clock)
        gates = Gates(clock, metrics.waits, lambda model: False)
        found = []
        for _ in range(ROUNDS):
            began = time.process_time()
            for _ in range(LAPS):
                key = ring.identify(f"Bearer {secret}", "")
                account = ledger.account(key)
                account.enter()
                ask = decode_ask(BODY)
                prompt = estimate(ask)
                ticket = read_ticket(
                    key=key.name, weight=key.limits.weight, best=key.limits.max_priority, priority="", deadline_ms="",
                    body_bytes=len(BODY), work=Work.CHAT,
                )  # fmt: skip
                need = Need(prompt.tokens, ask.longest_answer or 0)
                account.check(ledger.moment(), need)
                charge = Charge(ledger, metrics, account, need)
                gate = gates.of("m", CONFIG)
                gate.set_slots(8)
                slot = gate.enter(ticket)
                account.headers(ledger.moment())
                slot.release()
                charge.settle("m")
                account.leave()
            found.append((time.process_time() - began) / LAPS)
        return statistics.median(found)


async def main() -> None:
    for count in (1, KEYS, 1, KEYS):
        print(f"{count:6} keys: {await measure(count, f's{count - 1}') * 1e6:.1f} us")


if __name__ == "__main__":
    uvloop.run(main())
