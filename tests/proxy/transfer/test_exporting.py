"""The command `wellspoken export`: what it reads, writes, says and ends with."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shlex
import sqlite3
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.responses import response
from tests.proxy.storing import CREATED, Run, fill, row, rows_of, runner
from tests.proxy.transfer.commands import EXPORT
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.http.auth import owner_of
from wellspoken.proxy.store.completions import CompletionStore
from wellspoken.proxy.store.database import Unavailable, Unusable
from wellspoken.proxy.store.rows import Query, Row
from wellspoken.proxy.transfer.export_command import moment
from wellspoken.proxy.transfer.jsonl import UsageError


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(capfdbinary)


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A store of 300 completions, 20 a model and of one second two."""
    rows = [
        row(n, model=f"m{n // 20}", metadata={"half": str(n % 2), "n": str(n)}) for n in range(300)
    ]
    fill(tmp_path / "chats.db", rows)
    return tmp_path / "chats.db"


def texts(out: bytes) -> list[str]:
    """Return the answers of lines in the chat format."""
    return [json.loads(line)["messages"][-1]["content"] for line in out.splitlines()]


def numbers(out: bytes) -> list[int]:
    return [int(text.split()[1]) for text in texts(out)]


def test_all_come_once_and_in_order(run: Run, db: Path, tmp_path: Path) -> None:
    done = run("export", "--store", db)
    assert done.returncode == 0
    assert numbers(done.stdout) == list(range(300))
    assert done.stderr == b"wellspoken: 300 completions, 300 lines as chat\n"
    to_file = run("export", "--store", db, "-o", tmp_path / "out.jsonl")
    assert (to_file.returncode, to_file.stdout) == (0, b"")
    assert (tmp_path / "out.jsonl").read_bytes() == done.stdout
    assert run("export", "--store", db, "-o", "-").stdout == done.stdout
    for format in ("evals", "full"):
        out = run("export", "--store", db, "--format", format).stdout
        lines = [json.loads(line) for line in out.splitlines()]
        assert [int((x.get("item") or x)["metadata"]["n"]) for x in lines] == list(range(300))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model", "m3"], range(60, 80)),
        (["--metadata", "half=1"], range(1, 300, 2)),
        (["--metadata", "half=1", "--metadata", "n=7"], [7]),
        (["--metadata", "half=0", "--metadata", "n=7"], []),
        (["--since", "2025-10-09T08:55:00Z"], range(200, 300)),
        (["--until", "2025-10-09 08:55:00+00:00"], range(200)),
        (["--since", "2025-10-09T10:54:00+02:00", "--until", "2025-10-09T08:54:00.5Z"], [80, 81]),
        (["--since", "2025-10-10"], []),
        (["--since", "1h"], []),
        (["--until", "1h", "--model", "m0"], range(20)),
    ],
)
def test_what_is_wanted_is_chosen(run: Run, db: Path, options: list[str], expected: Any) -> None:
    assert CREATED == 1_759_999_980 + 20  # 2025-10-09T08:53:20Z
    done = run("export", "--store", db, *options)
    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout) == list(expected)


def test_a_key_has_its_own_alone(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    db, key = tmp_path / "chats.db", tmp_path / "key"
    key.write_text("sk-bob\n")
    monkeypatch.setenv("ALICE", "sk-alice")
    fill(db, [row(n, owner=owner_of(("sk-alice", "sk-bob")[n % 2])) for n in range(6)])
    assert numbers(run("export", "--store", db, "--key", "env:ALICE").stdout) == [0, 2, 4]
    assert numbers(run("export", "--store", db, "--key", f"file:{key}").stdout) == [1, 3, 5]
    assert numbers(run("export", "--store", db).stdout) == list(range(6))


def test_the_store_is_that_of_a_file_or_the_environment(
    run: Run, db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "w.toml"
    file.write_text(f"[store]\npath = '{db}'\nmax_age = 1\n[[backend]]\nurl = 'http://x'\n")
    assert len(texts(run("export", "--config", file).stdout)) == 300
    assert len(texts(run("export", "--store", db).stdout)) == 300  # that pruned nothing
    monkeypatch.setenv("WELLSPOKEN_STORE_PATH", str(db))
    monkeypatch.setenv("WELLSPOKEN_LISTEN", "0.0.0.0:1")  # which needs keys, in a proxy
    assert len(texts(run("export").stdout)) == 300
    other = tmp_path / "other.db"
    fill(other, [row(1)])
    monkeypatch.setenv("WELLSPOKEN_STORE_SPOOL", "spool.db")  # which is of the proxy's PostgreSQL
    assert len(texts(run("export", "--store", other).stdout)) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "name the store: --config FILE"),
        (["--store", "missing.db"], "there is no store at missing.db"),
        (["--store", "POSTGRESQL://u:secret@h/d"], "--store is a URL of another kind"),
        (["--config", "missing.toml"], "cannot read missing.toml"),
        (["--store", "DB", "--since", "yesterday"], "--since 'yesterday' is no time"),
        (["--store", "DB", "--until", "2026-02-30"], "--until '2026-02-30' is no time (day is out"),
        (["--store", "DB", "--since", "1h", "--until", "2h"], "--since is not before --until"),
        (["--store", "DB", "--metadata", "k"], "--metadata 'k' is no pair"),
        (["--store", "DB", "--metadata", "k=1", "--metadata", "k=2"], "two values for 'k'"),
        (["--store", "DB", "--key", "sk-secret"], "--key: write env:NAME or file:PATH"),
        (["--store", "DB", "-o", "DB"], "would overwrite the store"),
        (["--store", "DB", "-o", "no/such/folder"], "cannot write no/such/folder"),
        (["--store", "DB", "--model", "m\udcff"], "--model: it is not UTF-8"),
        (["--store", "DB", "--metadata", "k=\udcff"], "--metadata: it is not UTF-8"),
        (["--store", "DB", "--format", "csv"], "invalid choice: 'csv'"),
        (["--store", "DB", "--config", "x"], "not allowed with argument"),
        (["--store", "env:NO_SUCH_NAME"], "NO_SUCH_NAME is not set"),
    ],
)
def test_wrong_usage_is_told(run: Run, db: Path, options: list[str], words: str) -> None:
    done = run("export", *[str(db) if option == "DB" else option for option in options])
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr.decode()
    assert b"secret" not in done.stderr
    assert len(rows_of(db)) == 300
    assert not Path("missing.db").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("1970-01-02", 86_400),
        ("1970-01-01T00:01", 60),
        ("1970-01-01T00:00:01.25Z", 2),
        ("1970-01-01t02:00:00+01:00", 3600),
        ("90s", 910),
        ("2m", 880),
        ("1h", 0),
    ],
)
def test_times_and_ages_are_read(text: str | None, expected: int | None) -> None:
    assert moment(text, "--since", 1_000.0) == expected


@pytest.mark.parametrize(
    "text",
    ["", "7", "d", "7y", "-7d", "2026-W01", "20260101", "2026-01-01T25:00", "now", "\u0667d"],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        moment(text, "--since", 1_000.0)


def test_what_is_left_out_is_counted(run: Run, tmp_path: Path) -> None:
    db = tmp_path / "chats.db"
    cut = [row(n) for n in range(4)]
    for each in cut[1:3]:
        each.answer = each.answer.replace(b'"finish_reason": "stop"', b'"finish_reason": "length"')
    cut[3].messages = b'[{"role":"critic","content":"x"}]'
    fill(db, cut)
    done = run("export", "--store", db)
    assert texts(done.stdout) == ["answer 0"]
    assert done.stderr.decode() == (
        "wellspoken: 4 completions, 1 line as chat; "
        "3 left out: length 2, a role of no training example 1\n"
    )
    assert texts(run("export", "--store", db, "--all").stdout) == [f"answer {n}" for n in range(3)]


@pytest.mark.parametrize("format", ["chat", "evals", "full"])
@pytest.mark.parametrize("key", [False, True])
def test_responses_are_in_the_full_format_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, key: bool
) -> None:
    db = tmp_path / "chats.db"
    monkeypatch.setenv("ALICE", "sk-alice")
    alice = owner_of("sk-alice")
    kept = [response(n, owner=(alice, "")[n % 2], metadata={"half": str(n % 2)}) for n in range(6)]
    chats = [row(n, owner=(alice, "")[n % 2]) for n in range(4)]
    fill(db, [*chats, *(one.make_row() for one in kept)])
    count, responses = (2, 3) if key else (4, 6)
    done = run("export", "--store", db, "--format", format, *(["--key", "env:ALICE"] * key))
    assert done.returncode == 0
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if format != "full":
        assert len(lines) == count
        assert done.stderr.decode() == (
            f"wellspoken: {count} completions, {count} lines as {format}; "
            f"{responses} left out: responses {responses}\n"
        )
        return
    assert done.stderr.decode() == (
        f"wellspoken: {count} completions and {responses} responses, {len(lines)} lines as full\n"
    )
    found = [line for line in lines if "history" in line]
    wanted = kept[::2] if key else kept
    assert [line["id"] for line in found] == [one.id for one in wanted]
    assert [line["response"] for line in found] == [json.loads(one.answer) for one in wanted]
    assert {line.get("owner") for line in lines} == ({alice} if key else {alice, None})
    done = run("export", "--store", db, "--format", "full", "--metadata", "half=1")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [
        one.id for one in kept[1::2]
    ]


def test_what_an_earlier_version_put_elsewhere_is_told(run: Run, tmp_path: Path) -> None:
    db = tmp_path / "chats.db"
    fill(db, [row(0), row(1), row(2)])
    lose(db, 1)
    done = run("export", "--store", db)
    assert done.returncode == 1 and texts(done.stdout) == ["answer 0", "answer 2"]
    told, last = done.stderr.decode().splitlines()
    assert "cannot be read: it lies in the directory or bucket that store.large_to named" in told
    assert "Export it with the version that stored it" in told
    assert last.endswith("; 1 row could not be read")


def lose(db: Path, *numbers: int) -> None:
    """Make rows such that their answers cannot be read, as store.large_to of old left them."""
    with sqlite3.connect(db) as file:
        ids = [(row(number).id,) for number in numbers]
        file.executemany("UPDATE completion SET answer = CAST('@ab/01' AS BLOB) WHERE id = ?", ids)
    file.close()


def test_a_store_that_cannot_be_used_is_told_in_a_line(run: Run, tmp_path: Path) -> None:
    db = tmp_path / "chats.db"
    db.write_bytes(b"no database at all, but long enough to be taken for one" * 20)
    done = run("export", "--store", db)
    assert (done.returncode, done.stdout) == (1, b"")
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("wellspoken: ") and "chats.db" in line


def test_it_works_beside_a_writer(db: Path, tmp_path: Path) -> None:
    """What is stored before it begins comes, in order; what comes meanwhile may, once."""
    ended = threading.Event()

    def write() -> None:
        n = 1_000
        while not ended.is_set():
            fill(db, [row(n), row(n + 1)])
            n += 2

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            done = subprocess.run([*EXPORT, "--store", str(db)], capture_output=True, timeout=120)
            assert done.returncode == 0, done.stderr
            found = numbers(done.stdout)
            assert found[:300] == list(range(300))
            assert found == sorted(set(found))
    finally:
        ended.set()
        writer.join()


@pytest.mark.parametrize(("times", "code"), [(1, 0), (2, 1)])
def test_a_page_that_fails_is_asked_for_once_more(
    run: Run, db: Path, monkeypatch: pytest.MonkeyPatch, times: int, code: int
) -> None:
    find, calls = CompletionStore.find, 0

    async def fails(store: CompletionStore, query: Query) -> list[Row]:
        nonlocal calls
        calls += 1
        if 3 <= calls < 3 + times:
            raise Unavailable("the server is down")
        return await find(store, query)

    monkeypatch.setattr(CompletionStore, "find", fails)
    done = run("export", "--store", db)
    assert done.returncode == code
    assert numbers(done.stdout) == list(range(300 if code == 0 else 3))
    told = b"the server is down; stopped after 3 completions, 3 lines as chat"
    assert (told in done.stderr) == (code == 1)


def test_a_disk_that_fills_up_leaves_whole_lines(tmp_path: Path) -> None:
    db, out = tmp_path / "chats.db", tmp_path / "out.jsonl"
    fill(db, [row(n, text=f"{n} " * 900) for n in range(100)])
    line = f"ulimit -f 64; exec {shlex.join(EXPORT)} --store {db} -o {out}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert done.returncode == 1
    lines = out.read_bytes().splitlines(keepends=True)
    assert 10 < len(lines) < 100
    assert len(texts(b"".join(lines))) == len(lines) and lines[-1].endswith(b"\n")
    assert "File too large; stopped after " in done.stderr
    assert f" {len(lines)} lines as chat" in done.stderr


def test_what_is_lost_is_left_out_and_told(run: Run, tmp_path: Path) -> None:
    db = tmp_path / "chats.db"
    fill(db, [row(n) for n in range(100)])
    lose(db, *range(2, 90, 4))
    done = run("export", "--store", db, "--format", "full")
    assert done.returncode == 1
    assert done.stdout.count(b"\n") == 78
    *told, last = done.stderr.decode().splitlines()
    assert last == "wellspoken: 78 completions, 78 lines as full; 22 rows could not be read"
    assert len(told) == 20
    assert all(re.search(r"left out: the answer of chatcmpl-\w+ cannot be", each) for each in told)


def test_what_is_deleted_meanwhile_is_not_lost(
    run: Run, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention deletes a row that cannot be read while it is asked for again."""
    find, failures = CompletionStore.find, 0

    async def fails(store: CompletionStore, query: Query) -> list[Row]:
        nonlocal failures
        rows = await find(store, query)
        if any(row.id.endswith("f") for row in rows):
            failures += 1
            if failures == 3:  # of a page, then of the row alone, then of the row asked for again
                for row in rows:
                    await store.delete(row.owner, row.id)
            raise Unusable("it is damaged")
        return rows

    monkeypatch.setattr(CompletionStore, "find", fails)
    done = run("export", "--store", db, "--until", "2025-10-09T08:53:28Z")
    assert (done.returncode, done.stderr) == (0, b"wellspoken: 15 completions, 15 lines as chat\n")
    assert numbers(done.stdout) == list(range(15))


def test_the_store_of_a_home_is_found_and_spared(
    run: Run, db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(db.parent))
    monkeypatch.setenv("WELLSPOKEN_STORE_PATH", "~/chats.db")
    assert len(texts(run("export").stdout)) == 300
    done = run("export", "-o", db)
    assert done.returncode == 2
    assert b"would overwrite the store" in done.stderr
    assert len(texts(run("export").stdout)) == 300


@pytest.mark.parametrize(("closed", "code"), [(">&-", 2), ("2>&-", 0), (">&- 2>&-", 2)])
def test_a_stream_that_is_closed_is_no_fault(db: Path, closed: str, code: int) -> None:
    line = f"{shlex.join([*EXPORT, '--store', str(db)])} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True)
    assert done.returncode == code
    assert len(texts(done.stdout)) == (0 if code else 300)
    assert (b"stdout is closed" in done.stderr) == (closed == ">&-")
    assert b"Traceback" not in done.stderr


def test_a_full_disk_is_told(run: Run, db: Path) -> None:
    done = run("export", "--store", db, "-o", "/dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith(b"wellspoken: No space left on device; stopped after 0 compl")


def test_no_progress_where_stderr_is_no_terminal(run: Run, db: Path) -> None:
    assert b"\r" not in run("export", "--store", db).stderr


def test_help_begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["export", "--help"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.split("\n")
    assert (lines[2], lines[3][:19]) == ("examples:", "  wellspoken export")


def test_a_loop_that_cannot_be_made_ends_it(
    db: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for want of a file descriptor; made in its own thread, it was waited for in vain."""

    def fail() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(asyncio, "new_event_loop", fail)
    done = run("export", "--store", db)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"wellspoken: Too many open files; stopped after 0 completions")
