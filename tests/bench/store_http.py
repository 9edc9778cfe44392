"""The same million rows through HTTP and through the command `export`."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

from msgspec import Struct, json

from tests.bench.load import Client, LoadError, connected
from tests.bench.process import pinned
from tests.bench.store_check import Line, quantile
from tests.bench.store_data import FILTERS, Filter, Tally
from tests.bench.store_engines import Place
from tests.bench.store_load import upstream
from tests.bench.store_loss import ready
from tests.bench.store_proxy import configured, environment, proxy
from tests.bench.store_speed import quiet

LIST_MS = 10.0
FILTER_MS = 25.0
DEEP = 1.5
LIMIT = 20


class _Item(Struct):
    id: str
    model: str
    metadata: dict[str, str] | None = None


class _List(Struct):
    object: str
    data: list[_Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


_list_of = json.Decoder(_List).decode


class Api:
    """One connection of the client with that key."""

    def __init__(self, url: str, key: str, client: Client) -> None:
        self._host = url.partition("//")[2]
        self._key = key
        self._client = client

    async def get(self, path: str) -> bytes:
        """Return the body of an answer. Raises LoadError for another status than 200."""
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {self._host}",
            f"Authorization: Bearer {self._key}",
        )
        answer = await self._client.ask("\r\n".join((*lines, "", "")).encode())
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise LoadError(f"{path}: {answer[:500]!r}")
        return body

    def page(self, wanted: Filter | None = None, after: str = "", limit: int = LIMIT) -> str:
        """Return the path of a page."""
        query = {"limit": str(limit)}
        if after:
            query["after"] = after
        if wanted is not None:
            query |= {f"metadata[{key}]": value for key, value in wanted.metadata}
            if wanted.model is not None:
                query["model"] = wanted.model
        return f"/v1/chat/completions?{urlencode(query)}"


def verify(body: bytes, wanted: Filter | None) -> None:
    """Raise LoadError unless this is a page of completions that match."""
    page = _list_of(body)
    ids = [item.id for item in page.data]
    right = page.object == "list" and len(set(ids)) == len(ids) <= LIMIT
    if ids:
        right = right and (page.first_id, page.last_id) == (ids[0], ids[-1])
    for item in page.data if wanted is not None else ():
        assert wanted is not None
        right = right and wanted.model in (None, item.model)
        right = right and set(wanted.metadata) <= set((item.metadata or {}).items())
    if not right:
        raise LoadError(f"a wrong page: {body[:500]!r}")


def through_http(
    engine: str,
    place: Place,
    tally: Tally,
    keys: list[str],
    folder: Path,
    samples: int,
    loop: asyncio.Runner,
    cores: tuple[set[int] | None, set[int] | None],
) -> list[Line]:
    """Start a proxy on the database, with keys, and measure what its first client sees."""
    alone, rest = cores
    path = folder / "keys"
    path.write_text("\n".join(keys) + "\n")
    path.chmod(0o600)
    with upstream(rest) as backend, pinned(rest):
        config = configured(folder, backend.url, place.table, str(path))
        with proxy(config, alone) as running:
            return loop.run(_measured(engine, running.url, keys[0], tally, samples))


async def _measured(engine: str, url: str, key: str, tally: Tally, samples: int) -> list[Line]:
    await ready(url)
    (client,) = await connected(url, 1)
    api, rng = Api(url, key, client), random.Random(13)
    ids = rng.choices(tally.ids, k=samples)
    lines = [*await _deep(api, engine, tally, samples)]
    middle, slow = await _times(api, [api.page(after=id) for id in ids])
    lines.append(
        _line(engine, "p99 of a page of 20 anywhere", slow, LIST_MS, f"p50 {middle:.2f} ms")
    )
    for wanted in FILTERS:
        verify(await api.get(api.page(wanted)), wanted)
        paths = [api.page(wanted, id if n % 2 else "") for n, id in enumerate(ids)]
        middle, slow = await _times(api, paths)
        lines.append(
            _line(engine, f"p99 of {wanted.name}", slow, FILTER_MS, f"p50 {middle:.2f} ms")
        )
    middle, slow = await _times(api, [f"/v1/chat/completions/{id}" for id in ids])
    lines.append(_line(engine, "p99 of one by its id", slow, None, f"p50 {middle:.2f} ms"))
    assert client.transport is not None
    client.transport.close()
    return lines


async def _deep(api: Api, engine: str, tally: Tally, samples: int) -> list[Line]:
    """Ask in turn for the first page and for the one behind nine tenths of the rows."""
    paths = {"first": api.page(), "deep": api.page(after=tally.ids[len(tally.ids) * 9 // 10])}
    spent: dict[str, list[float]] = {name: [] for name in paths}
    for path in paths.values():
        verify(await api.get(path), None)
    with quiet():
        for _ in range(samples):
            for name, path in paths.items():
                began = time.perf_counter()
                await api.get(path)
                spent[name].append((time.perf_counter() - began) * 1e3)
    first, deep = (quantile(spent[name], 0.5) for name in ("first", "deep"))
    what = "HTTP: p50 of a page at 90% over the first one's"
    base = f"the first takes {first:.2f} ms"
    return [Line("million", engine, what, deep / first, "x", "<=", DEEP, False, base)]


def _line(engine: str, what: str, value: float, bound: float | None, base: str) -> Line:
    return Line("million", engine, f"HTTP: {what}", value, "ms", "<=", bound, False, base)


async def _times(api: Api, paths: list[str]) -> tuple[float, float]:
    """Return p50 and p99 of the milliseconds that these take."""
    spent = []
    with quiet():
        for path in paths:
            began = time.perf_counter()
            await api.get(path)
            spent.append((time.perf_counter() - began) * 1e3)
    return quantile(spent, 0.5), quantile(spent, 0.99)


def exported(engine: str, place: Place, rows: int, folder: Path) -> list[Line]:
    """Export everything with the command; every row of everybody has to come out once."""
    out = folder / "out.jsonl"
    config = configured(folder, "http://127.0.0.1:9", place.table)
    command = [sys.executable, "-m", "wellspoken.proxy.cli", "export", "--config", str(config)]
    began = time.perf_counter()
    with out.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.PIPE, env=environment()
        )
        assert process.stderr is not None
        said = process.stderr.read()
        process.stderr.close()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    spent = time.perf_counter() - began
    if process.returncode:
        raise LoadError(f"export: {said.decode('utf-8', 'replace')[-1000:]}")
    with out.open("rb") as lines:
        count = sum(1 for _ in lines)
    what = f"lines of an export of {rows:,} rows"
    return [
        Line("million", engine, what, count, "", "==", rows, True),
        Line("million", engine, "rows a second, export", rows / spent, ""),
        Line("million", engine, "memory of the export at most", used.ru_maxrss / 1024, "MiB"),
    ]
