"""Every section of `make soak` at its shortest; no bound but those of time is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench import store_loss
from tests.bench.store_check import Line, exit_code, table
from tests.soak import __main__ as soak
from tests.soak import ends, kills
from tests.soak.proxies import at_most, exactly, is_whole


@pytest.mark.parametrize("name", [*soak.sections(short=True), "kills"])
def test_no_bound_is_broken(name: str) -> None:
    if name == "restart" and ends.balancer() is None:
        pytest.skip("haproxy is not installed")
    lines = soak.run_sections(True, [name])
    assert lines and exit_code(lines) == 0, table(lines)


def test_a_broken_bound_ends_it_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def leaks() -> list[Line]:
        return [at_most("leaks", "memory grown", 11.0, "MB", 10.0)]

    monkeypatch.setattr(soak, "sections", lambda short: {"leaks": leaks})
    assert soak.main(["--short", "--only", "leaks"]) == 1
    assert "MISS" in capsys.readouterr().out


def test_times_break_nothing_on_a_busy_machine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow() -> list[Line]:
        return [at_most("livez", "p99", 900.0, "ms", 250.0), exactly("livez", "wrong", 0, 0)]

    monkeypatch.setattr(soak, "sections", lambda short: {"livez": slow})
    assert soak.main(["--short", "--only", "livez"]) == 0
    assert soak.main(["--only", "livez"]) == 1


def test_so_does_the_age_of_what_a_kill_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        Line("kill", "sqlite", "oldest", 300.0, "ms", "<=", 50.0, True),
        Line("kill", "sqlite", "doubled", 0, "", "==", 0, True),
    ]
    monkeypatch.setattr(store_loss, "kill", lambda *given: lines)
    assert exit_code(kills.stored(2)) == 0
    assert soak.main(["--only", "kills"]) == 1
    lines[1] = replace(lines[1], value=1)
    assert exit_code(kills.stored(2)) == 1


def test_what_is_no_whole_answer_is_none() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert is_whole(head + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    for answer in (b"", head, head + b"0\r\n\r\n", b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n"):
        assert not is_whole(answer)
