"""Budgets: what fits, what is reserved, what comes back, and what is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blazar.admission.budget import DAY_S, Account, Kind, Moment, Need, as_duration
from blazar.admission.keys import Limits
from blazar.base.errors import ApiError, Code
from blazar.base.records import DayUse

WALL = 20_000 * DAY_S + 3600.0  # an hour after midnight, UTC


def at(now: float) -> Moment:
    return Moment(1000.0 + now, WALL + now)


def account(**limits: int) -> Account:
    return Account("k", Limits(**limits), DayUse("k", 20_000))


def refused(act: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()
    assert caught.value.code is Code.RATE_LIMITED
    return caught.value


@pytest.mark.rule("B01")
def test_order_is_concurrency_then_rpm_then_tpm_then_day() -> None:
    full = account(rpm=1, tpm=10, daily_tokens=10, max_concurrent=1)
    full.enter()
    assert refused(full.enter).kind == Kind.MAX_CONCURRENT
    full.commit(at(0), Need(10, 0))
    assert refused(lambda: full.check(at(0), Need(1, 0))).kind == Kind.RPM
    full.limits = Limits(tpm=10, daily_tokens=10)
    assert refused(lambda: full.check(at(0), Need(1, 0))).kind == Kind.TPM
    full.limits = Limits(daily_tokens=10)
    assert refused(lambda: full.check(at(0), Need(1, 0))).kind == Kind.DAILY_TOKENS


@pytest.mark.case("C15")
def test_refusal_burns_nothing() -> None:
    one = account(rpm=1, tpm=100)
    for _ in range(5):
        refused(lambda: one.commit(at(0), Need(101, 0)))
    assert one.today(at(0)).requests == 0
    one.commit(at(0), Need(100, 0))


@pytest.mark.case("C15")
def test_what_the_queue_refuses_is_given_back_whole() -> None:
    one = account(rpm=1, tpm=100, daily_tokens=100)
    one.give_back(one.commit(at(0), Need(50, 50)), at(30))
    assert one.today(at(30)) == DayUse("k", 20_000)
    one.commit(at(30), Need(50, 50))


@pytest.mark.parametrize("kind", ["rpm", "tpm"])
def test_retry_after_is_the_first_second_at_which_it_fits(kind: str) -> None:
    one = account(rpm=2) if kind == "rpm" else account(tpm=20)
    one.commit(at(0.5), Need(10, 0))
    one.commit(at(20.0), Need(10, 0))
    error = refused(lambda: one.check(at(30.25), Need(10, 0)))
    assert error.retry_after_s == 30
    refused(lambda: one.check(at(30.25 + 29.7), Need(10, 0)))
    one.check(at(30.25 + 30), Need(10, 0))


@pytest.mark.rule("T04")
def test_day_ends_at_midnight_utc() -> None:
    one = account(daily_tokens=10)
    one.settle(one.commit(at(0), Need(10, 0)), at(1), prompt=10, completion=0)
    error = refused(lambda: one.check(at(2), Need(1, 0)))
    assert error.retry_after_s == DAY_S - 3600 - 2
    midnight = at(DAY_S - 3600)
    one.check(midnight, Need(1, 0))
    assert one.today(midnight) == DayUse("k", 20_001)
    assert one.take_unsaved() == [DayUse("k", 20_000, requests=1, prompt_tokens=10)]


def test_clock_that_is_set_back_does_not_bring_yesterday_back() -> None:
    one = account(daily_tokens=10)
    one.settle(one.commit(at(DAY_S), Need(10, 0)), at(DAY_S), prompt=10, completion=0)
    refused(lambda: one.check(Moment(3000.0, WALL), Need(1, 0)))


@pytest.mark.case("C16")
def test_reservations_keep_five_at_once_within_the_budget() -> None:
    one = account(tpm=100)
    admitted = []
    for _ in range(5):
        try:
            admitted.append(one.commit(at(0), Need(7, 30)))
        except ApiError:
            continue
    assert (
        sum(reservation.tokens for reservation in admitted) == 100
    )  # the third gets what is left: its answer may be shorter
    assert len(admitted) == 3
    for reservation in admitted:
        one.settle(reservation, at(1), prompt=7, completion=3)
    one.check(at(1), Need(70, 0))  # what they did not need came back at once
    refused(lambda: one.check(at(1), Need(71, 0)))


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 60), st.integers(0, 60)), max_size=40))
def test_admitted_use_exceeds_the_budget_by_no_more_than_one_request(asks: list[tuple[int, int, int]]) -> None:
    one, used, largest = account(tpm=100), 0, 0
    for prompt, longest, produced in asks:
        try:
            reservation = one.commit(at(0), Need(prompt, longest))
        except ApiError:
            continue
        spent = min(produced, longest)
        one.settle(reservation, at(0), prompt=prompt, completion=spent)
        used, largest = used + prompt + spent, max(largest, prompt + spent)
    assert used <= 100 + largest


def test_use_beyond_the_reservation_counts_also_after_it_has_left_the_window() -> None:
    one = account(tpm=100)
    reservation = one.commit(at(0), Need(10, 20))
    one.settle(reservation, at(90), prompt=10, completion=60)
    refused(lambda: one.check(at(90), Need(61, 0)))
    one.check(at(90), Need(60, 0))


@pytest.mark.parametrize("limit", ["tpm", "daily_tokens"])
def test_request_that_can_never_fit_says_so_and_names_no_time(limit: str) -> None:
    error = refused(lambda: account(**{limit: 50}).check(at(0), Need(60, 0)))
    assert error.retry_after_s is None
    assert "60 tokens" in str(error)
    assert "never fit 50" in str(error)


def test_lease_comes_back() -> None:
    one = account(max_concurrent=1)
    one.enter()
    refused(one.enter)
    one.leave()
    one.enter()


def test_headers_tell_what_is_left() -> None:
    one = account(rpm=5, tpm=100)
    one.commit(at(0.5), Need(10, 20))
    assert dict(one.headers(at(10.0))) == {
        b"x-ratelimit-limit-requests": b"5",
        b"x-ratelimit-remaining-requests": b"4",
        b"x-ratelimit-reset-requests": b"50s",
        b"x-ratelimit-limit-tokens": b"100",
        b"x-ratelimit-remaining-tokens": b"70",
        b"x-ratelimit-reset-tokens": b"50s",
    }
    assert account().headers(at(0)) == ()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, b"0s"), (0.2, b"1s"), (59, b"59s"), (360, b"6m0s"), (3600, b"1h0m0s"), (86399.5, b"24h0m0s")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: bytes) -> None:
    assert as_duration(seconds) == text


def test_day_row_is_always_the_whole_day() -> None:
    one = account()
    for _ in range(3):
        one.settle(one.commit(at(0), Need(5, 5)), at(0), prompt=5, completion=2)
    assert one.take_unsaved() == [DayUse("k", 20_000, requests=3, prompt_tokens=15, completion_tokens=6)]
    assert one.take_unsaved() == []
    one.commit(at(1), Need(1, 1))
    assert one.take_unsaved() == [DayUse("k", 20_000, requests=4, prompt_tokens=15, completion_tokens=6)]
