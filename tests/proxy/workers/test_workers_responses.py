"""Several workers that keep responses: each goes on from what another has kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conforming import MODEL
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import CHAT
from tests.proxy.endpoints.responses.asking import PATH, Json, says
from tests.proxy.workers.test_workers import Workers, workers
from tests.proxy.workers.test_workers_store import asked, write_config

ROUND = 8
"""Turns before the restart and after it, over connections that any worker may get."""


async def create(running: Workers, number: int, previous: Json | None) -> Json:
    """Return the response to one more turn."""
    sent: Json = {"model": MODEL, "input": f"question {number}"}
    if previous is not None:
        sent["previous_response_id"] = previous["id"]
    status, body = await asked(running, "POST", PATH, json=sent)
    assert status == 200, body
    found: Json = body
    assert (await asked(running, "GET", f"{PATH}/{found['id']}"))[1] == found
    return found


@pytest.mark.parametrize("where", ["sqlite", "postgres"])
async def test_each_worker_goes_on_from_what_another_has_kept(
    upstream: Upstream, tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    file = write_config(upstream, tmp_path, where, request)
    upstream.script("/health", whole({}))
    upstream.script(CHAT, *(says(f"answer {number}") for number in range(2 * ROUND)))
    kept: list[Json] = []
    for start in (0, ROUND):
        async with workers(upstream, config=file) as running:
            await running.all(2)
            for number in range(start, start + ROUND):
                kept.append(await create(running, number, kept[-1] if kept else None))
            assert (await asked(running, "DELETE", f"{PATH}/{kept[start + 2]['id']}"))[0] == 200
            assert (await asked(running, "GET", CHAT))[1]["data"] == []
    said: list[Any] = [one["content"] for one in upstream.requests[-1].json()["messages"]]
    talk = [f"{what} {n}" for n in range(2 * ROUND) for what in ("question", "answer")]
    assert said == talk[:-1]
    text = "\n".join(running.said)
    assert "ERROR" not in text and "lost" not in text
