"""A fake that fails inside of asyncio fails its test."""

from __future__ import annotations

import asyncio

import pytest

from tests.complaints import note_complaints


@pytest.mark.complains
async def test_a_callback_that_fails_is_noted() -> None:
    with note_complaints() as said:
        asyncio.get_running_loop().call_soon(lambda: dict[str, int]()["the key"])
        await asyncio.sleep(0)
    assert len(said) == 1 and "Exception in callback" in said[0] and "the key" in said[0]


async def test_what_is_said_of_what_was_collected_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise OSError

    with note_complaints() as said:
        task = asyncio.create_task(fail())
        await asyncio.wait({task})
        del task
    assert "never retrieved" in caplog.text and said == []
