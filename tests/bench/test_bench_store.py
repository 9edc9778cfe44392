"""The store's benchmark at its smallest, and for each of its checks something that it rejects.

Nothing here looks at how long anything took.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import store, store_loss, store_million, store_speed
from tests.bench.load import LoadError
from tests.bench.store_check import (
    Ack,
    Found,
    Ledger,
    Line,
    Stored,
    compare,
    content,
    correctness,
    crc,
    exit_code,
    failed,
    oldest_lost,
    quantile,
    some,
    table,
)
from tests.bench.store_data import EVERYTHING, FILTERS, SIZE, Captures, Filter, Tally
from tests.bench.store_engines import Engine, Postgres, Sqlite, SqlitePlace, opened
from tests.bench.store_http import verify
from tests.bench.store_load import Kind, asking, note
from tests.postgres import Server
from wellspoken.proxy.store.rows import Query, Row, row_of

BODY = b'{"id":"chatcmpl-%b","choices":[{"message":{"content":"%b"}}]}'


@pytest.fixture(autouse=True)
def no_core_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what runs go to any core: other tests keep each of them busy."""
    for section in (store_loss, store_million, store_speed):
        monkeypatch.setattr(section, "cores", lambda: None)


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "sqlite":
        yield Sqlite()
        return
    server: Server = request.getfixturevalue("postgres")
    yield Postgres(server.url, server.stop, server.start)


def test_captures_are_skewed_ordered_4_kb_and_the_same_every_time() -> None:
    owners = ["first", "second", "third"]
    captures = Captures(owners, texts=20).some(2000)
    assert captures == Captures(owners, texts=20).some(2000)
    sizes = [len(capture.answer) for capture in captures]
    assert SIZE * 0.9 < min(sizes) <= max(sizes) <= SIZE
    rows = [row_of(capture) for capture in captures]
    assert len({row.id for row in rows}) == len(rows)
    created = [row.created for row in rows]
    assert created == sorted(created) and len(set(created)) < len(rows) / 2
    tally = Tally("first")
    tally.add(rows)
    assert tally.owners["first"] > tally.owners["second"] > tally.owners["third"] > 0
    assert tally.expected(EVERYTHING) == tally.owners["first"] == len(tally.ids)
    frequent, rare = (tally.expected(FILTERS[n]) for n in (0, 1))
    assert frequent > 0.7 * len(tally.ids) > rare > 0
    (never,) = (each for each in FILTERS if "none has both" in each.name)
    assert tally.expected(never) == 0
    for pair in never.metadata:  # yet each of the two is frequent
        assert sum(Filter("", (pair,)).matches(row) for row in rows) > 300


def stored(count: int) -> tuple[dict[str, Ack], list[Stored]]:
    rows = [(f"chatcmpl-{n}", BODY % (b"%d" % n, b"text %d" % n)) for n in range(count)]
    acks = {
        id: Ack(float(n), crc(answer) if n % 2 else None, crc(content(answer)))
        for n, (id, answer) in enumerate(rows)
    }
    return acks, rows


def test_rows_as_they_were_acknowledged_are_right() -> None:
    acks, rows = stored(4)
    unseen = ("chatcmpl-9", BODY % (b"9", b""))
    found = compare(acks, [*rows, unseen])
    assert found == Found(4, 5, (), (), (), 1)
    assert exit_code(correctness("kill", "sqlite", found, "async")) == 0


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("lost", lambda rows: rows[1:]),
        ("doubled", lambda rows: [*rows, rows[2]]),
        # One answer is whole, of another the content counts, since a stream is folded.
        ("altered", lambda rows: [*rows[:3], (rows[3][0], rows[3][1] + b" ")]),
        ("altered", lambda rows: [*rows[:2], (rows[2][0], rows[1][1]), rows[3]]),
        ("altered", lambda rows: [*rows[:2], (rows[2][0], b"{"), rows[3]]),
    ],
)
def test_a_row_lost_doubled_or_altered_fails(
    what: str, change: Callable[[list[Stored]], list[Stored]]
) -> None:
    acks, rows = stored(4)
    found = compare(acks, change(rows))
    wrong = {"lost": found.lost, "doubled": found.doubled, "altered": found.altered}
    assert [name for name, ids in wrong.items() if ids] == [what]
    lines = correctness("kill", "sqlite", found, "async")
    assert exit_code(lines) == 1
    (missed,) = (line for line in lines if line.ok is False)
    assert missed.what.startswith(what)


def test_what_was_lost_is_dated_by_its_acknowledgement() -> None:
    acks = {"old": Ack(10.0, None, 0), "new": Ack(10.95, None, 0), "late": Ack(11.2, None, 0)}
    assert oldest_lost(acks, ["new", "late"], 11.0) == pytest.approx(50)
    assert oldest_lost(acks, ["old", "new"], 11.0) == pytest.approx(1000)
    assert oldest_lost(acks, ["late"], 11.0) == oldest_lost(acks, [], 11.0) == 0


@pytest.mark.parametrize(
    ("durability", "age", "fails"),
    [
        ("async", 0.02, False),
        ("async", 0.2, True),
        ("commit", 0.02, True),
    ],
)
def test_a_kill_may_lose_only_what_the_durability_allows(
    durability: str, age: float, fails: bool
) -> None:
    acks, rows = stored(3)
    killed = acks["chatcmpl-2"].at + age
    kills = store_loss.Kills(durability)
    kills.add(acks, rows[:2], killed)
    assert (kills.acknowledged, kills.lost, kills.runs_with_loss) == (3, 1, 1)
    assert exit_code(kills.lines("sqlite", 1)) == fails
    kills = store_loss.Kills(durability)
    kills.add(acks, rows, killed)
    assert exit_code(kills.lines("sqlite", 1)) == 0
    kills.unsound.append("page 7 is never used")
    assert exit_code(kills.lines("sqlite", 1)) == 1
    assert exit_code(store_loss.Kills(durability).lines("sqlite", 1)) == 1  # no load at all


def test_only_a_target_that_no_machine_may_miss_fails_the_run() -> None:
    slow = Line("rate", "sqlite", "rows", 10.0, "", ">=", 5000)
    told = Line("rate", "sqlite", "rows", 10.0, "")
    assert (slow.ok, told.ok, exit_code([slow, told])) == (False, None, 0)
    assert "MISS" in table([slow]) and "MISS" not in table([told])
    assert exit_code([failed("kill", "sqlite", "it did not start")]) == 1
    assert exit_code([some("kill", "sqlite", "acknowledged", 0)]) == 1
    assert exit_code([some("kill", "sqlite", "acknowledged", 1)]) == 0
    assert replace(slow, value=5000.0).ok and replace(slow, sense="<=", value=5000.0).ok
    values = [float(n) for n in range(1, 201)]
    assert (quantile(values, 0.99), quantile(values, 0.5), quantile([7.0], 0.99)) == (198, 100, 7)


def test_only_a_whole_answer_without_a_warning_is_an_acknowledgement() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n"
    warning = b"x-wellspoken-warning: not stored: the store's queue is full\r\n"
    body = BODY % (b"a1", b"x")
    events = b'9\r\ndata: {"id":"chatcmpl-b2"}\n\n\r\n%bdata: [DONE]\n\n\r\n0\r\n\r\n'
    whole, stream = Kind(b"", 5, False), Kind(b"", 6, True)
    ledger = Ledger()
    note(ledger, whole, head + b"\r\n" + body, 1.0)
    note(ledger, stream, head + b"\r\n" + events % b"e\r\n", 2.0)
    assert ledger.acks == {
        "chatcmpl-a1": Ack(1.0, crc(body), 5),
        "chatcmpl-b2": Ack(2.0, None, 6),
    }
    note(ledger, whole, head + warning + b"\r\n" + body, 3.0)
    note(ledger, stream, head + b"\r\n" + events % b": not stored: full\n\n", 3.0)
    assert (len(ledger.warnings), ledger.errors, len(ledger.acks)) == (2, [], 2)
    note(ledger, whole, head.replace(b"200", b"503") + b"\r\n" + body, 4.0)
    note(ledger, whole, head + b"\r\n" + body[:-1], 4.0)
    note(ledger, stream, head + b"\r\n" + events.partition(b"%b")[0], 4.0)
    assert (len(ledger.errors), len(ledger.acks)) == (3, 2)
    assert len({len(asking("m", store=store, stream=False)) for store in (True, False)}) == 1


def pages() -> tuple[Query, list[Row], Filter]:
    rows = [x for x in Captures(["o"], texts=5).rows(200) if FILTERS[0].matches(x)][:20]
    for n, row in enumerate(rows):
        row.seq = n + 1
    query = Query(owner="o", limit=21, metadata=dict(FILTERS[0].metadata))
    return query, rows, FILTERS[0]


def test_a_page_that_is_not_what_was_asked_for_is_seen() -> None:
    query, rows, wanted = pages()
    store_million.verify_page(query, wanted, rows, 20)
    other = replace_row(rows[0], metadata={"split": "test"})
    foreign = replace_row(rows[0], owner="p")
    wrong: dict[str, tuple[list[Row], int]] = {
        "another owner": ([foreign, *rows[1:]], 20),
        "does not match": ([other, *rows[1:]], 20),
        "out of order": (rows[::-1], 20),
        "a row twice": ([rows[0], *rows[:-1]], 20),
        "too many": ([*rows, *(replace_row(rows[-1], seq=n) for n in (30, 31))], 22),
        "rows missing": (rows[:-1], 20),
    }
    for what, (given, expected) in wrong.items():
        with pytest.raises(LoadError, match=what):
            store_million.verify_page(query, wanted, given, expected)


def replace_row(row: Row, **changed: object) -> Row:
    fields = {name: getattr(row, name) for name in row.__struct_fields__}
    return Row(**fields | changed)


@pytest.mark.parametrize(
    "body",
    [
        b'{"object":"list","data":[{"id":"a","model":"m"}],"first_id":"a","last_id":"b",%b}',
        b'{"object":"x","data":[],"first_id":null,"last_id":null,%b}',
        b'{"object":"list","data":[{"id":"a","model":"n"}],"first_id":"a","last_id":"a",%b}',
    ],
)
def test_a_list_that_is_wrong_is_seen(body: bytes) -> None:
    more = b'"has_more":false'
    item = b'{"id":"a","model":"m","metadata":{"k":"v"}}'
    good = b'{"object":"list","data":[%b],"first_id":"a","last_id":"a",%b}' % (item, more)
    verify(good, Filter("", (("k", "v"),), "m"))
    with pytest.raises(LoadError):
        verify(good, Filter("", (("k", "w"),)))
    with pytest.raises(LoadError):
        verify(body % more, Filter("", (), "m"))


def test_a_deleted_row_is_missed_after_sigterm_and_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way, with a database that loses one row behind the proxy's back."""
    engine = Sqlite()
    assert exit_code(store_loss.sigterm(engine, 5)) == 0

    class Losing(SqlitePlace):
        async def stored(self) -> list[Stored]:
            with closing(sqlite3.connect(self.path)) as db, db:
                db.execute("DELETE FROM completion WHERE seq = 2")
            return await super().stored()

    monkeypatch.setattr("tests.bench.store_engines.SqlitePlace", Losing)
    lines = store_loss.sigterm(engine, 5)
    missed = [line.what for line in lines if line.ok is False]
    assert len(missed) == 2 and all(what.startswith("lost of") for what in missed)


def test_a_file_that_is_damaged_is_no_clean_open(tmp_path: Path) -> None:
    place = SqlitePlace(tmp_path / "bench.db")

    async def go() -> tuple[str, str]:
        async with opened(place) as made:
            await made.insert(Captures([""], texts=5).rows(300))
        before = await place.unsound()
        data = bytearray(place.path.read_bytes())
        data[20 * 4096 : 22 * 4096] = b"\x07" * 8192
        place.path.write_bytes(data)
        try:
            return before, await place.unsound()
        except sqlite3.DatabaseError as error:
            return before, str(error)

    before, after = asyncio.run(go())
    assert before == "" and after


def test_every_section_runs_at_its_smallest(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_speed, "CPU_ROUNDS", 2)
    added = store_speed.latency(engine, 20)
    assert {line.engine for line in added} == {engine.name}
    assert [line.bound for line in added].count(store_speed.ADDED) == 4
    assert all(line.value > 0 for line in store_speed.rate(engine, 300))
    killed = store_loss.kill(engine, 2)
    assert exit_code(line for line in killed if line.unit != "ms") == 0
    found = store_million.million(engine, 1500, 5)
    assert exit_code(found) == 0
    assert {line.bound for line in found} >= {10.0, 25.0, 1.5, None}
    (exported,) = (line for line in found if "lines of an export" in line.what)
    assert exported.bound == 1500 - 5


def test_postgresql_goes_away_and_comes_back(postgres: Server) -> None:
    engine = Postgres(postgres.url, postgres.stop, postgres.start)
    lines = store_loss.outage(engine, 0.1)
    assert exit_code(lines) == 0
    assert any(line.what.startswith("acknowledged while away") for line in lines)


def test_a_database_that_no_proxy_has_opened_has_no_rows(postgres: Server, tmp_path: Path) -> None:
    """As one that went away before the proxy had made its tables, whose rows are in the spool."""
    engine = Postgres(postgres.url, postgres.stop, postgres.start)
    with engine.fresh(tmp_path) as place:
        assert asyncio.run(place.count()) == 0


def test_the_command_says_what_it_missed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    arguments = ["--engines", "sqlite", "--only", "rate", "--added", "300", "--json", str(out)]
    assert store.main(arguments) == 0
    assert "rows of 4.1 kB a second" in capsys.readouterr().out
    assert '"section": "rate"' in out.read_text()

    def broken(engine: Engine, rows: int) -> list[Line]:
        raise LoadError("the last row is not there as it was added")

    monkeypatch.setattr(store_speed, "rate", broken)
    assert store.main(arguments) == 1
    assert "not there as it was added" in capsys.readouterr().out
