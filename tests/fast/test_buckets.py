"""The sliding minute against its twin."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazar._fast.buckets import WINDOW_S, Window, take
from tests.fast import reference_admission as reference

steps = st.lists(
    st.tuples(
        st.floats(0.0, 90.0) | st.sampled_from([0.0, 0.5, 1.0, 59.0, 60.0, 3600.0]),  # time that passes before it
        st.integers(0, 1000),  # used then
        st.integers(0, 100),  # how long ago something is amended
        st.integers(-50, 50),
    ),
    max_size=30,
)


@given(steps, st.floats(0, 1e6), st.integers(0, 2000), st.integers(0, 2000))
def test_window_answers_what_its_twin_answers(
    history: list[tuple[float, int, int, int]], start: float, need: int, limit: int
) -> None:
    window, twin, now = Window(), reference.Window(), start
    for pause, amount, ago, change in history:
        now += pause
        window.add(now, amount)
        twin.add(now, amount)
        at = max(now - ago, start)
        assert window.amend(at, now, change) == twin.amend(at, now, change)
        assert window.used(now) == twin.used(now)
        assert window.empty_s(now) == pytest.approx(twin.empty_s(now))
    # A cell below zero, which no caller makes, lets the two look for the moment in different ways.
    if all(change >= 0 for *_, change in history):
        assert window.wait_s(now, need, limit) == pytest.approx(twin.wait_s(now, need, limit))


@given(st.lists(st.floats(0, 5), min_size=1, max_size=40), st.integers(1, 10))
def test_after_the_wait_it_fits_and_a_moment_before_it_does_not(pauses: list[float], limit: int) -> None:
    window, now = Window(), 100.0
    for pause in pauses:
        now += pause
        window.add(now, 1)
    wait = window.wait_s(now, 1, limit)
    if wait:
        assert window.used(math.nextafter(now + wait, 0) - 1e-6) + 1 > limit
    assert window.used(now + wait + 1e-6) + 1 <= limit


@given(
    st.lists(st.tuples(st.floats(0.0, 40.0), st.integers(1, 30), st.integers(0, 60)), max_size=30),
    st.integers(0, 6),
    st.integers(0, 100),
)
def test_taking_takes_what_its_twin_takes(asks: list[tuple[float, int, int]], rpm: int, tpm: int) -> None:
    kernel, twin, now = (Window(), Window()), (reference.Window(), reference.Window()), 50.0
    for pause, least, more in asks:
        now += pause
        taken = take(*kernel, now, rpm, tpm, least, least + more)
        assert taken == reference.take(*twin, now, rpm, tpm, least, least + more)
        assert taken == -1 or least <= taken <= least + more
        assert [w.level(now) for w in kernel] == [pytest.approx(w.level(now)) for w in twin]
        assert not tpm or kernel[1].used(now) <= tpm
        assert not rpm or kernel[0].used(now) <= rpm


def test_use_counts_for_sixty_seconds_of_the_grid() -> None:
    window = Window()
    window.add(10.9, 5)
    assert window.used(69.99) == 5
    assert window.used(10.0 + WINDOW_S) == 0


def test_what_can_never_fit_says_so() -> None:
    assert Window().wait_s(0.0, 11, 10) == -1.0


def test_amending_what_has_left_the_window_changes_nothing() -> None:
    window = Window()
    window.add(0.0, 5)
    assert not window.amend(0.0, 60.0, -5)
    assert window.used(60.0) == 0


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 1e16])
def test_time_that_is_none_is_refused(time: float) -> None:
    with pytest.raises(ValueError, match="time"):
        Window().add(time, 1)
    with pytest.raises(ValueError, match="time"):
        Window().amend(time, 0.0, 1)
