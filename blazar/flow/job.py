"""A request on its way, once its body has been read."""

from __future__ import annotations

import dataclasses

from blazar.admission.budget import Account
from blazar.admission.ticket import Ticket
from blazar.flow.ask import Ask, Body
from blazar.flow.call import Call
from blazar.relay.client import Client


@dataclasses.dataclass(slots=True)
class Job:
    """A request whose body has been read.

    Attributes:
        body: its bytes, until they have gone to the last engine that is tried.
        ask: the same, as far as it has been decoded; as long as the body.
        asked: the model's name in it.
        prompt: its tokens: estimated, or as an engine has counted them.
        most: the tokens that it may have at most, as far as is known.
        longest: tokens of the longest answer; None where the request does not say, 0 where it generates nothing.
        ticket: for the queue.
        num_ctx: the context that the client wants to be held to; 0: the model's.
    """

    call: Call
    client: Client
    account: Account
    body: Body
    ask: Ask
    asked: str
    prompt: int
    most: int
    longest: int | None
    ticket: Ticket
    num_ctx: int
