"""What headers and bodies make of a request's place in the queue."""

from __future__ import annotations

import pytest

from blazar.admission.ticket import HEAVY_BODY_BYTES, MAX_DEADLINE_MS, Priority, Ticket, Work, read_number, read_ticket
from blazar.base.errors import ApiError, Code


def ticket(
    priority: str = "",
    *,
    deadline: str = "",
    body: int = 100,
    best: Priority = Priority.HIGH,
    work: Work = Work.CHAT,
) -> Ticket:
    return read_ticket(
        key="k", weight=1, best=best, priority=priority, deadline_ms=deadline, body_bytes=body, work=work
    )


@pytest.mark.rule("L03")
@pytest.mark.parametrize(
    ("header", "priority", "slo_s"),
    [
        ("high", Priority.HIGH, 2.0), ("HIGH", Priority.HIGH, 2.0), ("low", Priority.LOW, 120.0),
        (" Low ", Priority.LOW, 120.0),
        ("", Priority.NORMAL, 30.0), ("normal", Priority.NORMAL, 30.0), ("urgent", Priority.NORMAL, 30.0),
    ],
)  # fmt: skip
def test_priority_has_its_deadline(header: str, priority: Priority, slo_s: float) -> None:
    found = ticket(header)
    assert (found.priority, found.slo_s, found.deadline_s) == (priority, slo_s, None)


@pytest.mark.rule("L02")
@pytest.mark.parametrize(
    ("header", "priority", "slo_s"),
    [("high", Priority.NORMAL, 30.0), ("", Priority.LOW, 120.0), ("low", Priority.LOW, 120.0)],
)
def test_heavy_prefill_goes_one_class_down_with_its_deadline(header: str, priority: Priority, slo_s: float) -> None:
    assert ticket(header, body=HEAVY_BODY_BYTES).priority != priority or header == "low"
    heavy = ticket(header, body=HEAVY_BODY_BYTES + 1, deadline="1500", work=Work.TOOL)
    assert (heavy.priority, heavy.slo_s, heavy.deadline_s) == (priority, slo_s, 1.5)


def test_tool_work_is_due_within_ten_seconds() -> None:
    assert ticket(work=Work.TOOL).slo_s == 10.0


def test_key_caps_what_may_be_asked() -> None:
    assert ticket("high", best=Priority.NORMAL).priority is Priority.NORMAL
    assert ticket("low", best=Priority.NORMAL).priority is Priority.LOW


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "soon", " 5", "٣", str(MAX_DEADLINE_MS + 1), "9" * 400])
def test_deadline_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ApiError, match=r"X-Blazar-Deadline-Ms is .*whole number of milliseconds") as caught:
        ticket(deadline=text)
    assert caught.value.code is Code.BAD_REQUEST
    assert len(str(caught.value)) < 300


def test_header_that_is_missing_is_zero() -> None:
    assert read_number("X", "", 10, "tokens") == 0
    assert read_number("X", "10", 10, "tokens") == 10
