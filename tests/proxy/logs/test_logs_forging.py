"""What clients choose themselves cannot make a line of the log look like what it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import StartProxy, raw
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.logs.logging_here import Written, logging_to, requests
from tests.waiting import until

HOSTILE = [
    'x", "outcome": "forged", "y": "',
    'a\n{"event":"request","outcome":"forged"}',
    "a\r\n2026-01-01T00:00:00Z 200 POST forged, 1 ms, req_1",
    "\x1b[2J\x1b]0;title\x07\x9b31m",
    "a\u2028b\u2029c\u0085d\u202etxt.exe\ufeff\u200b",
    "\x00\x7f\\n\\u000a\\",
    "m" * 1_000_000,
    "ключ 模型 🤖",
]


def unforged(text: str, count: int) -> list[str]:
    """Return the lines of a log, of which there are so many, with nothing odd in any."""
    lines = text.splitlines()  # which also ends a line at what JSON would let stand
    assert len(lines) == count
    assert all(line.isprintable() and len(line) < 2000 for line in lines)
    return lines


@pytest.mark.parametrize("name", HOSTILE[1:-1])
def test_a_name_that_is_written_as_it_came_would_be_found(name: str) -> None:
    with pytest.raises(AssertionError):
        unforged(f"09:00:00 200 POST chat_completions {name}, 1 ms, req_1\n", 1)


@pytest.mark.parametrize("form", ["json", "text"])
async def test_no_name_of_a_model_forges_anything(
    upstream: Upstream, start_proxy: StartProxy, tmp_path: Path, form: str
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    with logging_to(tmp_path / "log", format=form) as written:
        written.observe(proxy.service)
        for name in HOSTILE:
            async with await proxy.chat(model=name) as response:
                assert response.status == 200
        await until(lambda: written.text().count("\n") >= len(HOSTILE))
        text = written.text()
    lines = unforged(text, len(HOSTILE))
    if form == "json":
        found = [json.loads(line) for line in lines]
        assert [line["model"] for line in found] == [name[:200] for name in HOSTILE]
        assert {line["outcome"] for line in found} == {"ok"}
    else:
        assert all(" 200 POST chat_completions " in line for line in lines)
        assert not any(line.startswith("2026-01-01") for line in lines)
        assert '"a\\u000a{\\"event\\"' in lines[1]


async def test_no_path_and_no_id_forges_anything(
    upstream: Upstream, start_proxy: StartProxy, written: Written
) -> None:
    proxy = await start_proxy(upstream)
    written.observe(proxy.service)
    for path, identity in (
        (b"/a\\n%0a\xc2\x85\x1b[31m", b"x\x1by"),
        (b"/\xff\xfe" + b"p" * 5000 + b"?key=canary", b"a b"),
        (b"/v1/key/sk-canary-123456789/chat", b"i" * 129),
    ):
        head = (
            b"GET %b HTTP/1.1\r\nHost: localhost\r\nx-request-id: %b\r\nConnection: close\r\n\r\n"
        )
        await raw(proxy.port, head % (path, identity))
    lines = await requests(written, 3)
    assert all(line["id"].startswith("req_") for line in lines)
    assert "canary" not in str(lines)
    text = written.text()
    assert len(text.splitlines()) == 3 and text.replace("\n", "").isprintable()
