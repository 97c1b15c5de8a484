"""The states of a child: every pair of state and event, and what causes mean."""

from __future__ import annotations

import itertools
import signal

import pytest

from blazar.supervisor.causes import MAX_WORDS, CauseKind, diagnose
from blazar.supervisor.machine import LEASABLE, TABLE, Event, IllegalTransition, State, transition


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_pair_leads_somewhere_or_is_refused(state: State, event: Event) -> None:
    if (state, event) in TABLE:
        assert transition(state, event) is TABLE[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"{event} cannot happen while {state}"):
            transition(state, event)


def test_death_is_possible_everywhere_and_final() -> None:
    for state in State:
        if state is not State.GONE:
            assert transition(state, Event.EXIT) is State.GONE
    assert {TABLE[State.GONE, event] for event in Event if (State.GONE, event) in TABLE} == {State.GONE}


def test_stopping_is_possible_everywhere_and_never_undone() -> None:
    for state in State:
        assert transition(state, Event.STOP) in (State.STOPPING, State.GONE)
    reachable = {TABLE[State.STOPPING, event] for event in Event if (State.STOPPING, event) in TABLE}
    assert reachable == {State.STOPPING, State.GONE}


def test_every_state_can_be_reached() -> None:
    reached, todo = set(), [State.STARTING]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += [target for (source, _), target in TABLE.items() if source is state]
    assert reached == set(State)


def test_only_a_living_ready_child_can_be_leased() -> None:
    for state in State:
        assert ((state, Event.LEASE) in TABLE or state is State.BUSY) == (state in LEASABLE)


@pytest.mark.parametrize(
    ("status", "output", "kind", "words"),
    [
        (
            1,
            "llama_model_load: error loading model: unknown model architecture: 'x'\nfailed",
            CauseKind.UNKNOWN_ARCHITECTURE,
            "'x'",
        ),
        (1, "a\nggml_backend_cuda: out of memory\nb", CauseKind.OUT_OF_MEMORY, "out of memory"),
        (134, "std::bad_alloc", CauseKind.OUT_OF_MEMORY, "bad_alloc"),
        (1, "error: invalid argument: --foo", CauseKind.BAD_FLAG, "--foo"),
        (1, "couldn't bind HTTP server socket", CauseKind.PORT, "bind"),
        (127, "llama-server: error while loading shared libraries: libfoo.so", CauseKind.MISSING_LIBRARY, "libfoo"),
        (1, "gguf_init: invalid magic characters", CauseKind.MODEL_FILE, "magic"),
        (-signal.SIGSEGV, "one\ntwo\n", CauseKind.SIGNAL, "signal 11, SIGSEGV; its last line: two"),
        (-signal.SIGKILL, "", CauseKind.SIGNAL, "signal 9, SIGKILL; its last line: it printed nothing"),
        (3, "bye", CauseKind.EXIT, "status 3; its last line: bye"),
        (0, "bye", CauseKind.CLEAN, "bye"),
    ],
)
def test_causes_are_typed_and_quote_the_engine(status: int, output: str, kind: CauseKind, words: str) -> None:
    cause = diagnose(status, output, stopped=False, loading=True)
    assert cause.kind is kind
    assert words in cause.words
    assert cause.clean == (kind is CauseKind.CLEAN)


def test_stop_that_was_asked_for_is_clean_but_a_kill_is_not() -> None:
    assert diagnose(-signal.SIGTERM, "", stopped=True, loading=False).clean
    assert diagnose(0, "error: invalid argument", stopped=True, loading=True).clean
    assert not diagnose(-signal.SIGKILL, "", stopped=True, loading=False).clean


def test_words_of_a_load_are_no_cause_of_a_death_in_service() -> None:
    output = "failed to load model\nerror: invalid argument: --grammar\ncouldn't bind\nlast"
    assert diagnose(-signal.SIGSEGV, output, stopped=False, loading=False).kind is CauseKind.SIGNAL
    starved = diagnose(-signal.SIGABRT, "out of memory\nlast", stopped=False, loading=False)
    assert starved.kind is CauseKind.OUT_OF_MEMORY


def test_exit_status_0_in_service_is_clean_whatever_was_printed_before() -> None:
    assert diagnose(0, "slot 1: out of memory, retrying\nbye", stopped=False, loading=False).clean
    assert not diagnose(0, "failed to load model", stopped=False, loading=True).clean


def test_quote_is_bounded() -> None:
    assert len(diagnose(1, "out of memory " * 1000, stopped=False, loading=False).words) == MAX_WORDS
