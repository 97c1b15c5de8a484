"""Ends requests that wait too long without a byte: one sweep a second over all of them, instead of a timer each.

A timer for every request would cost more than the rest of its bookkeeping; limits are in seconds, so a second's grain
is enough.
"""

from __future__ import annotations

import asyncio

import msgspec

from blazar.base.clock import Clock
from blazar.base.errors import ApiError, Code
from blazar.relay.client import Client, Stage

SWEEP_S = 1.0
SLICE = 1000  # requests looked at before the loop gets a turn


class StallLimits(msgspec.Struct, frozen=True):
    """Seconds without a byte that each stage may last; 0: for ever."""

    body_s: float
    header_s: float
    stream_s: float

    def of(self, stage: Stage) -> float:
        """The stage's limit."""
        if stage is Stage.BODY:
            return self.body_s
        if stage is Stage.HEADER:
            return self.header_s
        return self.stream_s if stage is Stage.STREAM else 0.0


class StallSweep:
    """The requests under way, and the sweep over them.

    Args:
        limits: read anew in each sweep, so that they can change live.
        clock: where time comes from.
    """

    def __init__(self, limits: StallLimits, clock: Clock) -> None:
        self.limits = limits
        self._clock = clock
        self.live: set[Client] = set()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for number, client in enumerate(tuple(self.live), 1):
                self.look(client, self._clock.monotonic())
                if number % SLICE == 0:
                    await asyncio.sleep(0)

    def look(self, client: Client, now: float) -> None:
        """Interrupt the client's request if it has moved nothing for its stage's limit."""
        mark = (client.stage, client.progress())
        if mark != client.seen:
            client.seen = mark
            client.since = now
            return
        limit = self.limits.of(client.stage)
        if limit and now - client.since >= limit:
            client.interrupt(stall_error(client.stage, limit))


def stall_error(stage: Stage, limit_s: float) -> ApiError:
    """What a request that waited too long in that stage is told."""
    if stage is Stage.BODY:
        return ApiError(
            Code.REQUEST_TIMEOUT, f"no byte of the request's body came within body_timeout_secs = {limit_s:g}"
        )
    if stage is Stage.HEADER:
        return ApiError(
            Code.GATEWAY_TIMEOUT, f"the engine sent no response headers within child_header_timeout_secs = {limit_s:g}"
        )
    return ApiError(
        Code.GATEWAY_TIMEOUT,
        f"the stream had no byte for stream_idle_timeout_secs = {limit_s:g}",
        "retry, or raise stream_idle_timeout_secs in config.toml",
    )
