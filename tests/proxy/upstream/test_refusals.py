"""What a server refuses is remembered while it may be the same server, and not without bound."""

from __future__ import annotations

from wellspoken.proxy.upstream.refusals import SYSTEM, USAGE, Refusals

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
