"""What a request holds of its key's budget, from its entry into the queue to its end."""

from __future__ import annotations

from blazar.admission.budget import Account, Need, Reservation
from blazar.observe.ledger import Ledger
from blazar.observe.metrics import Metrics
from blazar.relay.usage import Spent

NOTHING = Spent(0, 0)


class Charge:
    """A reservation that is settled once.

    Args:
        ledger: for the time.
        metrics: told of the tokens.
        account: the key's.
        need: what is reserved.

    Attributes:
        at: when it was reserved.
        spent: what the request has really cost; nothing before an engine has been asked.

    Raises:
        ApiError: RATE_LIMITED, the budget does not have it any more.
    """

    __slots__ = ("_account", "_ledger", "_metrics", "_reservation", "at", "spent")

    def __init__(self, ledger: Ledger, metrics: Metrics, account: Account, need: Need) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._account = account
        self.at = ledger.moment()
        self._reservation: Reservation | None = account.commit(self.at, need)
        self.spent = NOTHING

    def refuse(self) -> None:
        """The queue did not take the request: it is as if it had not been."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            self._account.give_back(reservation, self._ledger.moment())

    def settle(self, model: str) -> None:
        """The request has ended."""
        reservation, self._reservation = self._reservation, None
        if reservation is not None:
            prompt, completion = self.spent.prompt, self.spent.completion
            self._account.settle(reservation, self._ledger.moment(), prompt=prompt, completion=completion)
            self._metrics.add_tokens(model, self._account.label, prompt, completion)
