"""From model, engine and configuration to one command line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from blazar.base.endpoint import Endpoint
from blazar.base.errors import ApiError, UsageError
from blazar.base.records import EngineKind, EngineRow, EngineSource, Manifest, ModelRow
from blazar.config.schema import Config, ModelOverride
from blazar.engines.lanes import pick_engine
from blazar.engines.profile import argv, compile_profile
from blazar.store.store import Store

FLAGS = (
    "--alias", "--ctx-size", "--embedding", "--jinja", "--metrics", "--model", "--no-webui", "--parallel", "--pooling",
    "--slots", "--threads", "--cache-ram", "-c", "-m", "-np", "-t",
)  # fmt: skip
MODEL = ModelRow(
    name="m", path="/models/m.gguf", size_bytes=1, sha256="", architecture="llama", ctx_train=8192, parameters=0,
    quant="", chat_template=True, source="import", added_at=0.0,
)  # fmt: skip
ENGINE = EngineRow(
    tag="a", kind=EngineKind.LLAMACPP, source=EngineSource.LOCAL, binary="/engines/llama-server", sha256="",
    manifest=Manifest(version="1", flags=FLAGS), active=True, installed_at=0.0,
)  # fmt: skip
TCP = Endpoint(host="127.0.0.1", port=81, unix_path="", secret="hush")


def words(model: ModelRow = MODEL, engine: EngineRow = ENGINE, endpoint: Endpoint = TCP, **config: object) -> str:
    profile = compile_profile(model=model, engine=engine, config=Config(**config), cpu_count=2)  # type: ignore[arg-type]
    return " ".join(argv(profile, Path(engine.binary), endpoint))


def override(**fields: object) -> dict[str, ModelOverride]:
    return {"m": ModelOverride(**fields)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (
            words(),
            "/engines/llama-server -m /models/m.gguf --alias m -c 32768 -np 4 -t 2 --jinja --metrics --slots "
            "--no-webui --host 127.0.0.1 --port 81",
        ),
        (
            words(
                endpoint=Endpoint(host="", port=0, unix_path="/run/x.sock", secret="hush"), slots=2, default_ctx=1000
            ),
            "/engines/llama-server -m /models/m.gguf --alias m -c 2000 -np 2 -t 2 --jinja --metrics --slots "
            "--no-webui --host /run/x.sock",
        ),
        (
            words(model_overrides=override(ctx=100, slots=3, extra_args=["--cache-ram", "-1", "--threads=7"])),
            "/engines/llama-server -m /models/m.gguf --alias m -c 300 -np 3 -t 2 --jinja --metrics --slots --no-webui "
            "--cache-ram -1 --threads=7 --host 127.0.0.1 --port 81",
        ),
        (
            words(msgspec.structs.replace(MODEL, architecture="bert", ctx_train=512)),
            "/engines/llama-server -m /models/m.gguf --alias m -c 2048 -np 4 -t 2 --jinja --metrics --slots --no-webui "
            "--embedding --pooling mean --host 127.0.0.1 --port 81",
        ),
    ],
)
def test_command_line(made: str, wanted: str) -> None:
    assert made == wanted


def test_secret_is_in_no_command_line() -> None:
    assert "hush" not in words()
    assert "hush" not in repr(TCP)


def test_flag_that_the_engine_lacks_is_left_out_or_refused() -> None:
    bare = msgspec.structs.replace(ENGINE, manifest=Manifest(version="0", flags=("-m", "-c", "-np", "-t", "--alias")))
    assert "--jinja" not in words(engine=bare)
    none = msgspec.structs.replace(ENGINE, manifest=Manifest(version="0", flags=("-m",)))
    with pytest.raises(UsageError, match="has no flag --alias or -a"):
        words(engine=none)


@pytest.mark.rule("V17")
def test_unknown_extra_flag_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        words(model_overrides=override(extra_args=["--cache-rams", "5"]))
    assert "extra_args of model 'm' has --cache-rams, which the engine a does not know" in str(caught.value)
    assert "did you mean --cache-ram?" in str(caught.value)


def test_every_flag_has_a_reason() -> None:
    profile = compile_profile(model=MODEL, engine=ENGINE, config=Config(), cpu_count=2)
    assert all(arg.reason for arg in profile.args)


class TestLanes:
    @pytest.fixture
    def store(self, tmp_path: Path):  # type: ignore[no-untyped-def]
        with Store.open(tmp_path / "db") as store:
            yield store

    def test_no_engine_teaches_the_command(self, store: Store) -> None:
        with pytest.raises(ApiError, match="blazar engine install --kind llamacpp"):
            pick_engine(store, MODEL, Config())

    def test_active_one_serves(self, store: Store) -> None:
        store.put_engine(ENGINE)
        assert pick_engine(store, MODEL, Config()) == ENGINE

    def test_override_wins_by_tag_and_by_kind(self, store: Store) -> None:
        older = msgspec.structs.replace(ENGINE, tag="old", active=False)
        store.put_engine(ENGINE)
        store.put_engine(older)
        assert pick_engine(store, MODEL, Config(model_overrides=override(engine="old"))) == older
        assert pick_engine(store, MODEL, Config(model_overrides=override(engine="llamacpp"))) == ENGINE
        with pytest.raises(ApiError, match="asks for the engine 'mlx', which is not installed"):
            pick_engine(store, MODEL, Config(model_overrides=override(engine="mlx")))
