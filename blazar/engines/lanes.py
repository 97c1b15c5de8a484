"""Which installed engine serves a model.

The decision is made when the model is started; clients have no say in it (B21).
"""

from __future__ import annotations

from blazar.base.errors import ApiError, Code
from blazar.base.records import EngineKind, EngineRow, ModelRow
from blazar.config.schema import Config
from blazar.store.store import Store


def pick_engine(store: Store, model: ModelRow, config: Config) -> EngineRow:
    """The engine for a model: its override's, by tag or by kind (B03), else the active one that serves GGUF files
    (B02).

    Raises:
        ApiError: MODEL_UNSUPPORTED_ENGINE, with the command that installs one.
    """
    override = config.model_overrides.get(model.name)
    if override is not None and override.engine:
        row = store.engine(override.engine)
        if row is None and override.engine in tuple(EngineKind):
            row = store.active_engine(EngineKind(override.engine))
        if row is None:
            raise ApiError(
                Code.MODEL_UNSUPPORTED_ENGINE,
                f"model {model.name!r} asks for the engine {override.engine!r}, which is not installed",
                f"install it, or change engine in [model_overrides.{model.name}]",
            )
        return row
    row = store.active_engine(EngineKind.LLAMACPP)
    if row is None:
        raise ApiError(
            Code.MODEL_UNSUPPORTED_ENGINE,
            f"no engine is installed that serves model {model.name!r} (GGUF)",
            "install one: blazar engine install --kind llamacpp",
        )
    return row
