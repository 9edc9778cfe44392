"""What a server refuses is remembered while it may be the same server, and not without bound."""

from __future__ import annotations

from wellspoken.proxy.upstream.refusals import MOST_IN_VAIN, SYSTEM, USAGE, Refusals

ONE, OTHER = ("url", 0), ("url", 1)


def test_another_server_refuses_nothing_yet() -> None:
    refusals = Refusals()
    refusals.note(ONE, (SYSTEM, "m"))
    assert refusals.hold(ONE, (SYSTEM, "m"))
    assert not refusals.hold(ONE, (USAGE, "/v1/chat/completions", "m"))
    assert not refusals.hold(OTHER, (SYSTEM, "m"))
    refusals.note(OTHER, (SYSTEM, "n"))
    assert not refusals.hold(OTHER, (SYSTEM, "m")) and refusals.hold(OTHER, (SYSTEM, "n"))


def test_clients_cannot_fill_the_memory() -> None:
    refusals = Refusals()
    for number in range(1001):
        refusals.note(ONE, (SYSTEM, str(number)))
    assert refusals.hold(ONE, (SYSTEM, "999")) and not refusals.hold(ONE, (SYSTEM, "1000"))


def test_what_is_sent_again_in_vain_puts_a_server_in_doubt_until_it_answers() -> None:
    refusals = Refusals()
    for _ in range(MOST_IN_VAIN):
        assert not refusals.doubt(ONE)
        refusals.note_in_vain(ONE)
    assert refusals.doubt(ONE) and not refusals.doubt(OTHER)
    refusals.note(ONE)
    assert not refusals.doubt(ONE)
    for _ in range(MOST_IN_VAIN - 1):
        refusals.note_in_vain(ONE)
    refusals.note_in_vain(OTHER)
    assert not refusals.doubt(ONE) and not refusals.doubt(OTHER)
