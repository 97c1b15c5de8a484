"""What the ways of requests stand on: one record of services, made once by `blazar.app`."""

from __future__ import annotations

import dataclasses

from blazar.admission.keys import KeyRing
from blazar.config.schema import Config
from blazar.flow.gates import Gates
from blazar.flow.settings import Settings
from blazar.flow.singleflight import Flights
from blazar.models.index import ModelIndex
from blazar.observe.access import AccessLog
from blazar.observe.ledger import Ledger
from blazar.observe.metrics import Metrics
from blazar.relay.pool import EnginePool
from blazar.relay.remote import Remotes
from blazar.relay.stalls import StallSweep
from blazar.supervisor import Supervisor

BODY_LIMIT = 50 * 1024 * 1024  # L01


@dataclasses.dataclass(slots=True)
class Gateway:
    """The running gateway. `config` and `keys` are replaced as a whole when the configuration is read again."""

    config: Config
    keys: KeyRing
    models: ModelIndex
    supervisor: Supervisor[EnginePool]
    stalls: StallSweep
    access: AccessLog
    ledger: Ledger
    metrics: Metrics
    gates: Gates
    flights: Flights
    settings: Settings
    remotes: Remotes
    keys_from_environment: bool = False  # then they cannot be changed
    not_ready: str = "starting"  # why /readyz says 503; "" when the gateway is ready
    draining: bool = False  # no request is admitted any more
    body_limit: int = BODY_LIMIT
