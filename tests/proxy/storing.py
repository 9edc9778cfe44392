"""Stores with rows in them, for the commands that read and write them."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.answers import ask, choice, completion
from wellspoken.proxy import config
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.store.completions import open_store
from wellspoken.proxy.store.rows import Capture, Query, Row, row_of

CREATED = 1_760_000_000
Run = Callable[..., subprocess.CompletedProcess[bytes]]


def row(n: int, *, owner: str = "", text: str = "", **request: Any) -> Row:
    """Return the n-th of some rows: two are made each second."""
    made = {"id": f"chatcmpl-{n:024x}", "created": CREATED + n // 2}
    answer = completion(choice(text or f"answer {n}"), **made)
    answer["model"] = request.get("model", "m")
    asked = ask(store=True, **request)
    return row_of(
        Capture(owner, f"req-{n}", json.dumps(answer).encode(), json.dumps(asked).encode())
    )


def settings(where: str | Path, **more: Any) -> config.Store:
    """Return the configuration of a store in a file or at a URL."""
    kind = "url" if str(where).startswith("postgresql://") else "path"
    more[kind] = str(where)
    return config.Store(**more)


def fill(where: str | Path, rows: Iterable[Row], **more: Any) -> None:
    """Put rows into a store, which is made."""
    rows = iter(rows)

    async def insert() -> None:
        store = open_store(settings(where, **more))
        await store.open()
        try:
            while group := list(islice(rows, 2_000)):
                await store.insert(group)
        finally:
            await store.close()

    asyncio.run(insert())


def rows_of(where: str | Path, **more: Any) -> list[Row]:
    """Return all rows of a store, in order."""

    async def find() -> list[Row]:
        store = open_store(settings(where, **more))
        await store.open()
        try:
            return await store.find(Query(owner=None, limit=10_000))
        finally:
            await store.close()

    return asyncio.run(find())


def runner(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Return what runs a command line in this process."""

    def run(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
        capfdbinary.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as ended:  # argparse's own
            code = int(ended.code or 0)
        out, err = capfdbinary.readouterr()
        return subprocess.CompletedProcess(arguments, code, out, err)

    return run
