"""The tree of errors."""

from __future__ import annotations

import pytest

from blazar.base.errors import ApiError, Code, UsageError
from blazar.base.records import EngineKind


def test_every_code_has_a_status_and_a_remedy() -> None:
    assert len(Code) == 29
    for code in Code:
        assert 400 <= code.status <= 599
        assert code.remedy


def test_error_without_a_remedy_of_its_own_has_its_codes() -> None:
    assert str(ApiError(Code.NOT_FOUND, "nothing here")) == f"nothing here: {Code.NOT_FOUND.remedy}"
    assert str(ApiError(Code.NOT_FOUND, "nothing here", "look there")) == "nothing here: look there"


def test_error_for_another_waiter_says_the_same() -> None:
    error = ApiError(Code.UNAVAILABLE, "wait", "now", retry_after_s=3)
    again = error.again()
    assert again is not error
    assert (str(again), again.code, again.retry_after_s) == (str(error), error.code, 3)


@pytest.mark.rule("V06")
def test_unknown_engine_kind_names_those_there_are() -> None:
    with pytest.raises(UsageError) as caught:
        EngineKind.parse("llama")
    assert str(caught.value) == (
        "unknown engine kind 'llama': choose one of llamacpp, mistralrs, sglang, sdcpp, whisper, mlx, piper"
    )
    assert EngineKind.parse("llamacpp") is EngineKind.LLAMACPP
