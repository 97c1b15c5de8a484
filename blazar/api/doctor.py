"""`/api/doctor`: what is wrong with the running gateway, as far as only it can know."""

from __future__ import annotations

from blazar.admission.keys import require_admin
from blazar.api.guards import is_loopback
from blazar.api.views import respond_json
from blazar.base.records import Finding
from blazar.flow.call import Call
from blazar.flow.gateway import Gateway
from blazar.relay.client import Client

DISK = "check that the data directory is writable and has space"


def findings(gateway: Gateway) -> list[Finding]:
    """Everything that is wrong."""
    found = []
    if problem := gateway.settings.problem:
        found.append(Finding("config", problem, "correct the file: until then the gateway goes by what it read before"))
    if gateway.keys.open and not is_loopback(gateway.config.host):
        everyone = f"the gateway is open to everyone who can reach {gateway.config.host}"
        found.append(Finding("keys", everyone, "add a [[keys]] entry to config.toml"))
    if failing := gateway.ledger.failing:
        found.append(Finding("usage", f"the use of keys cannot be written: {failing}", DISK))
    if failing := gateway.access.failing:
        found.append(Finding("access_log", f"the access log cannot be written: {failing}", DISK))
    return found


async def doctor(gateway: Gateway, call: Call, client: Client) -> None:
    """The findings; none: all is well."""
    require_admin(call.key, "/api/doctor")
    await respond_json(client, {"findings": findings(gateway)})
