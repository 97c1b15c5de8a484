"""Compiles (model, engine, configuration) into one command line: the single place that knows engines' flags.

Pure. A flag is only used where the engine's own manifest lists it; what cannot be left out and is missing is an error
here, before anything is started, and so is a flag of `extra_args` that the engine does not know (V17).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from blazar.base.endpoint import Endpoint
from blazar.base.errors import UsageError
from blazar.base.records import EngineRow, ModelRow
from blazar.config.schema import Config, ModelOverride

AUTO_SLOTS = 4
EMBEDDING_ARCHITECTURES = frozenset(("bert", "nomic-bert", "jina-bert-v2", "modern-bert", "gte", "t5encoder"))


class Arg(msgspec.Struct, frozen=True):
    """A flag, its value ("" where it has none), and why it is there."""

    flag: str
    value: str
    reason: str


class Profile(msgspec.Struct, frozen=True):
    """How an engine is started for a model, apart from where it listens."""

    args: tuple[Arg, ...]
    env: dict[str, str]
    slots: int
    ctx: int  # tokens of one slot


NO_OVERRIDE = ModelOverride()


def compile_profile(*, model: ModelRow, engine: EngineRow, config: Config, cpu_count: int) -> Profile:
    """The profile of a model on a llama.cpp engine.

    Args:
        cpu_count: cores of the machine; the engine's threads.

    Raises:
        UsageError: the engine lacks a flag that is needed, or `extra_args` has one that it does not know.
    """
    override = config.model_overrides.get(model.name, NO_OVERRIDE)
    slots = override.slots or config.slots or AUTO_SLOTS
    ctx, ctx_reason = _ctx(model, config, override)
    known = frozenset(engine.manifest.flags)
    args = [
        _needed(engine, ("-m", "--model"), model.path, "the model's file"),
        _needed(engine, ("--alias", "-a"), model.name, "the name that clients use"),
        _needed(engine, ("-c", "--ctx-size"), str(ctx * slots), f"{ctx_reason}, for each of {slots} slots"),
        _needed(engine, ("-np", "--parallel"), str(slots), "slots: requests that run at once"),
        _needed(engine, ("-t", "--threads"), str(cpu_count), "cores of this machine"),
    ]
    wished = [
        Arg("--jinja", "", "the model's own chat template"),
        Arg("--metrics", "", "figures for the gateway"),
        Arg("--slots", "", "what each slot is doing"),
        Arg("--no-webui", "", "the gateway is the front"),
        Arg("--offline", "", "an engine fetches nothing"),
        Arg("--no-kv-unified", "", "every slot has its own context"),
    ]
    if model.architecture in EMBEDDING_ARCHITECTURES:
        wished += [Arg("--embedding", "", "the model only embeds"), Arg("--pooling", "mean", "one vector a text")]
    args += [arg for arg in wished if arg.flag in known]
    args += _extra(override.extra_args, model, engine)
    return Profile(args=tuple(args), env={}, slots=slots, ctx=ctx)


def argv(profile: Profile, binary: Path, endpoint: Endpoint) -> tuple[str, ...]:
    """The whole command line. The secret is not in it: other users of the machine can read command lines."""
    listen = (
        ("--host", endpoint.unix_path)
        if endpoint.unix_path
        else ("--host", endpoint.host, "--port", str(endpoint.port))
    )
    words = [word for arg in profile.args for word in (arg.flag, arg.value) if word]
    return (str(binary), *words, *listen)


def _ctx(model: ModelRow, config: Config, override: ModelOverride) -> tuple[int, str]:
    """Context of one slot, and why: the override's, else the default, at most what the model was trained with."""
    if override.ctx:
        return override.ctx, f"ctx of [model_overrides.{model.name}]"
    if model.ctx_train and model.ctx_train < config.default_ctx:
        return model.ctx_train, "the length that the model was trained with"
    return config.default_ctx, "default_ctx"


def _needed(engine: EngineRow, names: Sequence[str], value: str, reason: str) -> Arg:
    for name in names:
        if name in engine.manifest.flags:
            return Arg(name, value, reason)
    raise UsageError(
        f"the engine {engine.tag} ({engine.manifest.version}) has no flag {' or '.join(names)}",
        "install a newer one: blazar engine install --kind llamacpp",
    )


def _extra(words: Sequence[str], model: ModelRow, engine: EngineRow) -> list[Arg]:
    """`extra_args`, every flag of which the engine has to know."""
    reason = f"extra_args of [model_overrides.{model.name}]"
    args: list[Arg] = []
    for word in words:
        flag, _, _ = word.partition("=")
        if not flag.startswith("-") or _is_number(flag):
            args.append(Arg(word, "", reason))
            continue
        if flag not in engine.manifest.flags:
            near = difflib.get_close_matches(flag, engine.manifest.flags, n=1, cutoff=0.0)
            raise UsageError(
                f"extra_args of model {model.name!r} has {flag}, which the engine {engine.tag} does not know",
                f"did you mean {near[0]}? (its flags: {engine.binary} --help)" if near else "",
            )
        args.append(Arg(word, "", reason))
    return args


def _is_number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdigit()
