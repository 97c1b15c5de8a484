"""`doctor`: what is wrong with the configuration, and with the gateway if one runs."""

from __future__ import annotations

import argparse

import msgspec

from blazar.base.errors import CommandError, ConfigError, UsageError
from blazar.base.records import Finding
from blazar.cli.client import find_gateway
from blazar.cli.main import Context
from blazar.cli.table import print_json
from blazar.config.load import load_config


class Findings(msgspec.Struct, frozen=True):
    """Answer of GET /api/doctor."""

    findings: tuple[Finding, ...]


def doctor(context: Context, options: argparse.Namespace) -> int:
    """Look at everything; exit status 1 where something is wrong."""
    found = [*of_config(context), *of_gateway(context, options)]
    if options.json:
        print_json(Findings(tuple(found)))
    elif not found:
        print("all is well")
    for finding in found if not options.json else ():
        print(f"{finding.check}: {finding.problem}\n    {finding.remedy}")
    return 1 if found else 0


def of_config(context: Context) -> list[Finding]:
    """What is wrong with the file, as a start would find it."""
    try:
        load_config(context.dirs.config_file, context.env)
    except ConfigError as error:
        return [Finding("config", str(problem), "correct the file") for problem in error.problems]
    return []


def of_gateway(context: Context, options: argparse.Namespace) -> list[Finding]:
    """What a running gateway says of itself."""
    try:
        with find_gateway(context, options) as client:
            return list(client.read(client.ask("GET", "/api/doctor"), Findings).findings)
    except ConfigError:
        return []  # told already
    except (CommandError, UsageError) as error:
        return [Finding("gateway", error.message, error.remedy)]
