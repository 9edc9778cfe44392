"""When one of several servers gets no requests, by a clock and a chance that the test sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellspoken.proxy.config.tables import Health
from wellspoken.proxy.upstream.ejection import JITTER, SOON, Ejection, Visit

MIDDLE = 0.5
"""The chance with which a pause is as long as it is meant to be."""


class Server:
    """A server's ejection with the clock and the chance that it asks."""

    def __init__(self, *, watched: bool = False, **rules: float) -> None:
        self.now = 1000.0
        self.chance = MIDDLE
        self.log: list[str] = []
        given = {"failures": 3, "interval": 0.0, "pause": 1.0, "longest_pause": 60.0, **rules}
        health = Health(**given)  # type: ignore[arg-type]
        told = self.log.append
        self.ejection = Ejection(health, lambda: self.now, lambda: self.chance, told)
        self.ejection.watched = watched

    @property
    def state(self) -> str:
        return self.ejection.state

    def fail(self, times: int = 1, reason: str = "refused") -> None:
        """Give it requests, one after the other, each of which fails."""
        for _ in range(times):
            round_ = self.ejection.take()
            self.ejection.note_failure(reason, round_)
            self.ejection.leave(round_)

    def answer(self) -> None:
        """Give it a request, which it answers."""
        round_ = self.ejection.take()
        self.ejection.note_success(round_)
        self.ejection.leave(round_)

    def put_out(self) -> float:
        """Let it fail until it is out; return the seconds of the pause."""
        self.fail(self.ejection.rules.failures)
        assert self.state == "out"
        return self.ejection.pause_left

    def end_pause(self) -> None:
        self.now += self.ejection.pause_left


def test_it_goes_out_after_failures_in_a_row_and_not_before() -> None:
    server = Server()
    server.fail(2)
    server.answer()
    server.fail(2)
    assert server.state == "in" and server.ejection.is_open and server.log == []
    server.fail(reason="502")
    assert server.state == "out" and not server.ejection.is_open
    assert (server.ejection.reason, server.ejection.ejections) == ("502", 1)
    assert server.log == ["gets no requests for 1.0 s: 502"]


def test_answers_that_begin_and_break_off_are_failures_in_a_row() -> None:
    server = Server()
    for _ in range(3):
        assert server.state == "in"
        visit = Visit(server.ejection)
        visit.note_head()
        visit.note_beginning()
        visit.note_failure("cut")
        visit.note_end()
        visit.leave()
    assert server.state == "out"


def test_what_is_answered_after_a_refusal_counts_and_a_failure_counts_once() -> None:
    server = Server()
    for _ in range(3):
        visit = Visit(server.ejection)
        visit.note_failure("500")  # of what was then left out, or of a question beside
        visit.note_failure("cut")
        visit.note_head()
        visit.note_end()
        visit.leave()
    assert server.state == "in"


def test_the_beginning_of_an_answer_ends_a_trial_and_its_head_does_not() -> None:
    server = Server()
    server.put_out()
    server.end_pause()
    visit = Visit(server.ejection)
    visit.note_beginning()  # of a refusal
    visit.note_head()
    assert server.state == "trial"
    visit.note_beginning()
    assert server.state == "in"
    visit.note_failure("cut")  # it was given before it came back
    visit.leave()
    server.fail(2)
    assert server.state == "in"
    server.fail()
    assert server.state == "out"


def test_what_failed_while_all_were_out_is_over_when_it_comes_back() -> None:
    server = Server(watched=True, interval=5.0)
    server.put_out()
    server.fail(5)
    server.end_pause()
    for _ in range(3):
        server.ejection.note_look("")
    server.fail(2)
    assert server.state == "in"


def test_after_its_pause_one_request_decides() -> None:
    server = Server()
    server.put_out()
    server.now += 0.999
    assert not server.ejection.is_open
    server.end_pause()
    assert server.ejection.is_open and server.state == "out"
    round_ = server.ejection.take()
    assert server.state == "trial" and not server.ejection.is_open  # one at a time
    server.ejection.note_success(round_)
    assert server.state == "in" and server.ejection.is_open and server.ejection.reason == ""
    server.ejection.leave(round_)
    assert server.state == "in"
    assert server.log[1:] == ["gets requests again: a request was answered"]


def test_a_trial_that_fails_puts_it_out_at_once() -> None:
    server = Server()
    server.put_out()
    server.end_pause()
    server.fail(reason="cut")
    assert server.state == "out" and server.ejection.reason == "cut"
    assert server.ejection.pause_left == 2.0


def test_a_trial_without_a_verdict_leaves_it_to_the_next_request() -> None:
    server = Server()
    server.put_out()
    server.end_pause()
    first = server.ejection.take()
    server.ejection.leave(first)  # the client has left, or the server said 429
    assert server.state == "out" and server.ejection.is_open
    second = server.ejection.take()
    assert server.state == "trial"
    server.ejection.note_success(first)  # what comes of it now is too late
    assert server.state == "trial"
    server.ejection.note_success(second)
    assert server.state == "in"


def test_what_was_given_before_it_went_out_says_nothing_of_it_now() -> None:
    server = Server()
    early = [server.ejection.take() for _ in range(6)]
    for round_ in early[:3]:
        server.ejection.note_failure("cut", round_)
    assert server.state == "out"
    pause = server.ejection.pause_left
    server.ejection.note_success(early[3])
    server.ejection.note_failure("cut", early[4])
    server.ejection.leave(early[4])
    assert server.state == "out" and server.ejection.pause_left == pause
    server.end_pause()
    trial = server.ejection.take()
    server.ejection.note_failure("cut", early[5])
    server.ejection.leave(early[5])
    assert server.state == "trial" and server.ejection.ejections == 1
    server.ejection.note_success(trial)
    assert server.state == "in"


def test_where_all_are_out_a_request_that_is_answered_brings_it_back() -> None:
    server = Server()
    server.put_out()
    server.fail()  # says nothing new
    assert server.state == "out" and server.ejection.ejections == 1
    server.answer()
    assert server.state == "in"


def test_what_it_got_while_all_were_out_neither_ends_nor_decides_a_trial() -> None:
    server = Server()
    server.put_out()
    before = server.ejection.take()
    server.end_pause()
    trial = server.ejection.take()
    beside = server.ejection.take()
    for round_ in (before, beside):
        server.ejection.note_failure("cut", round_)
        server.ejection.leave(round_)
        assert server.state == "trial" and not server.ejection.is_open
    server.ejection.note_success(trial)
    assert server.state == "in"


def test_pauses_of_one_that_fails_again_soon_grow_to_a_limit() -> None:
    server = Server(longest_pause=7.0)
    pauses = [server.put_out()]
    for _ in range(4):
        server.end_pause()
        server.answer()
        server.now += SOON * pauses[-1] - 0.001
        pauses.append(server.put_out())
    assert pauses == pytest.approx([1.0, 2.0, 4.0, 7.0, 7.0])
    for _ in range(2):
        server.end_pause()
        server.fail()
        assert server.ejection.pause_left == pytest.approx(7.0)


def test_one_that_was_well_for_long_is_forgiven() -> None:
    server = Server()
    server.put_out()
    server.end_pause()
    server.fail()  # 2 s
    server.end_pause()
    server.answer()
    server.now += SOON * 2.0 + 0.001
    assert server.put_out() == 1.0


@given(chance=st.floats(0, 1), pause=st.floats(0.01, 100))
def test_a_pause_differs_by_chance(chance: float, pause: float) -> None:
    server = Server(pause=pause, longest_pause=100.0)
    server.chance = chance
    found = server.put_out()
    assert found == pytest.approx(pause * (1 + JITTER * (2 * chance - 1)))
    assert pause * (1 - JITTER) * 0.999 <= found <= pause * (1 + JITTER) * 1.001


def test_looks_put_it_out_and_one_is_needed_before_its_trial() -> None:
    server = Server(watched=True, interval=5.0)
    server.ejection.note_look("503")
    server.ejection.note_look("503")
    server.ejection.note_look("")  # begins anew
    server.ejection.note_look("503")
    server.ejection.note_look("503")
    assert server.state == "in"
    server.ejection.note_look("503")
    assert server.state == "out" and server.ejection.reason == "503"
    server.ejection.note_look("")  # too early
    server.end_pause()
    assert not server.ejection.is_open
    server.ejection.note_look("")
    assert server.ejection.is_open
    server.ejection.note_look("refused")
    assert not server.ejection.is_open and server.ejection.ejections == 1
    server.ejection.note_look("")
    trial = server.ejection.take()
    for _ in range(4):
        server.ejection.note_look("")  # only the request decides
        assert server.state == "trial"
    server.ejection.note_look("refused")
    assert server.state == "out" and server.ejection.pause_left == 2.0
    server.ejection.note_success(trial)
    assert server.state == "out"


def test_where_no_request_tries_it_good_looks_bring_it_back() -> None:
    server = Server(watched=True, interval=5.0)
    server.put_out()
    for _ in range(9):
        server.ejection.note_look("")
    server.end_pause()
    server.ejection.note_look("")
    server.ejection.note_look("")
    server.ejection.note_look("503")
    for _ in range(2):
        server.ejection.note_look("")
        assert server.state == "out" and server.ejection.is_open
    server.ejection.note_look("")
    assert server.state == "in"
    assert server.log[1:] == ["gets requests again: it answers"]


def test_a_request_and_looks_fail_together() -> None:
    server = Server(watched=True, interval=5.0)
    server.fail()
    server.ejection.note_look("refused")
    assert server.state == "in"
    server.ejection.note_look("refused")
    assert server.state == "out"


def test_a_good_look_does_not_hide_that_requests_fail() -> None:
    """A server whose model hangs, or fails each time, may say at /health that it is well."""
    server = Server(watched=True, interval=5.0)
    for _ in range(3):
        assert server.state == "in"
        server.fail(reason="first_token_timeout")
        server.ejection.note_look("")
    assert server.state == "out" and server.ejection.reason == "first_token_timeout"


@pytest.mark.parametrize(("watched", "interval"), [(False, 5.0), (True, 0.0)])
def test_where_nobody_looks_the_trial_follows_the_pause(watched: bool, interval: float) -> None:
    server = Server(watched=watched, interval=interval)
    server.put_out()
    server.end_pause()
    assert server.ejection.is_open


def test_other_rules_hold_for_one_that_is_out() -> None:
    server = Server(watched=True, interval=5.0)
    server.put_out()
    server.end_pause()
    assert not server.ejection.is_open
    server.ejection.rules = Health(interval=0.0, pause=10.0, failures=1)
    assert server.ejection.is_open  # nobody looks any more
    server.fail()
    assert server.ejection.pause_left == 10.0


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["take", "success", "failure", "leave", "look", "bad look", "time"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(events=EVENTS, watched=st.booleans())
def test_whatever_happens_its_state_is_sound(events: list[tuple[str, int]], watched: bool) -> None:
    """One request is on trial at a time, and what decides is that one, or a look."""
    server = Server(watched=watched, interval=5.0, failures=2)
    ejection = server.ejection
    under_way: list[tuple[int, bool]] = []  # each with whether it is on trial
    for what, number in events:
        before, on_trial = server.state, [each for each in under_way if each[1]]
        assert len(on_trial) <= 1
        trial = False
        if what == "take":
            opened = ejection.is_open
            under_way.append((ejection.take(), server.state == "trial" != before))
            assert (server.state == "trial") == (before == "trial" or (before == "out" and opened))
        elif what == "time":
            server.now += number
        elif "look" in what:
            ejection.note_look("503" if what == "bad look" else "")
            assert server.state == before or server.state == ("in", "out")[what == "bad look"]
        elif under_way:
            round_, trial = under_way.pop(number % len(under_way))
            if what == "success":
                ejection.note_success(round_)
            elif what == "failure":
                ejection.note_failure("cut", round_)
            ejection.leave(round_)
            if before == "trial" and not trial:
                assert server.state == "trial"
            if before == "trial" and trial:
                assert server.state == ("in" if what == "success" else "out")
        if server.state != "trial":
            under_way = [(round_, False) for round_, _ in under_way]
        assert (server.state == "in") == (ejection.reason == "") == (not ejection.until)
        assert server.state != "trial" or not ejection.is_open
