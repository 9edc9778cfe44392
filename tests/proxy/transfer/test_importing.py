"""The command `wellspoken import`, and that what export wrote comes back as it was."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shlex
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import IO

import msgspec
import pytest
from msgspec import structs

from tests.fakes.responses import response
from tests.postgres import Server
from tests.proxy.storing import Run, fill, row, rows_of, runner
from tests.waiting import block_until
from wellspoken.adapters.answer_schema import ChatCompletion
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.http.auth import owner_of
from wellspoken.proxy.store.database import StoreError
from wellspoken.proxy.store.kept_responses import (
    KeptResponse,
    context_of,
    is_response,
    response_of,
)
from wellspoken.proxy.store.rows import Row

COMMAND = [sys.executable, "-m", "wellspoken.proxy.cli", "import"]
EXAMPLE = b'{"messages":[{"role":"user","content":"Q"},{"role":"assistant","content":"A"}]}'


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return runner(capfdbinary)


def mixed() -> list[Row]:
    """Rows of two owners, one of them large, made out of the order of their times."""
    rows = [row(n, metadata={"n": str(n)}, temperature=0.5, user="é") for n in range(600)]
    for n in range(0, 600, 3):
        rows[n].owner = owner_of("sk-alice")
    rows[7] = row(7, text=os.urandom(100_000).hex())
    rows[8].metadata = {}
    return rows[300:] + rows[:300]


def test_a_full_export_comes_back_as_it_was(run: Run, tmp_path: Path) -> None:
    first, second = tmp_path / "a.db", tmp_path / "b.db"
    file, again = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    fill(first, mixed())
    config = tmp_path / "w.toml"
    config.write_text(f"[store]\npath = '{first}'\n[[backend]]\nurl = 'http://x'\n")
    assert run("export", "--config", config, "--format", "full", "-o", file).returncode == 0
    done = run("import", "--store", second, file)
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"wellspoken: 600 lines: 600 imported, 0 there already, 0 rejected\n"
    run("export", "--store", second, "--format", "full", "-o", again)
    assert again.read_bytes() == file.read_bytes()
    assert {one.owner for one in rows_of(second)} == {"", owner_of("sk-alice")}
    done = run("import", "--store", second, file)
    assert done.stderr == b"wellspoken: 600 lines: 0 imported, 600 there already, 0 rejected\n"
    assert len(rows_of(second)) == 600


def test_a_full_export_goes_to_postgresql_and_back(
    run: Run, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = tmp_path / "a.db", tmp_path / "b.db"
    fill(first, mixed())
    monkeypatch.setenv("THE_DATABASE", postgres.database())
    exports: list[bytes] = []
    for source, target in ((first, "env:THE_DATABASE"), ("env:THE_DATABASE", last), (last, None)):
        file = tmp_path / f"{len(exports)}.jsonl"
        done = run("export", "--store", source, "--format", "full", "-o", file)
        assert done.returncode == 0, done.stderr
        exports.append(file.read_bytes())
        if target is not None:
            for expected in (b"600 imported, 0 there", b"0 imported, 600 there"):
                assert expected in run("import", "--store", target, file).stderr
    assert exports[0].count(b"\n") == 600
    assert exports[0] == exports[1] == exports[2]


def test_responses_go_to_postgresql_and_back_and_are_continued(
    run: Run, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the completions beside them, and each with the whole that it continues."""
    first, last, file = tmp_path / "a.db", tmp_path / "b.db", tmp_path / "all.jsonl"
    monkeypatch.setenv("THE_DATABASE", postgres.database())
    alice = owner_of("sk-alice")
    given: list[Row] = [row(1, owner=alice)]
    for owner in ("", alice):
        previous: KeptResponse | None = None
        for n in range(4):
            previous = response(n, previous, owner=owner, text="é \x00 " * 2000 * (n % 2))
            given.append(previous.make_row())
    fill(first, given)
    for source, target in ((first, "env:THE_DATABASE"), ("env:THE_DATABASE", last)):
        assert run("export", "--store", source, "--format", "full", "-o", file).returncode == 0
        done = run("import", "--store", target, file)
        assert done.stderr == b"wellspoken: 9 lines: 9 imported, 0 there already, 0 rejected\n"
    done = run("import", "--store", last, file)
    assert done.stderr == b"wellspoken: 9 lines: 0 imported, 9 there already, 0 rejected\n"
    found = {(one.owner, one.id): structs.replace(one, seq=0) for one in rows_of(last)}
    assert found == {(one.owner, one.id): one for one in given}
    kept = [response_of(one) for one in rows_of(last) if is_response(one)]
    assert len(context_of(max(kept, key=lambda one: one.size))) == 8


def test_responses_are_given_to_another_key(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, file = tmp_path / "a.db", tmp_path / "b.db", tmp_path / "all.jsonl"
    monkeypatch.setenv("OLD", "sk-old")
    monkeypatch.setenv("NEW", "sk-new")
    old = owner_of("sk-old")
    others = response(1).make_row()
    fill(first, [row(1, owner=old), response(2, owner=old).make_row(), others])
    run("export", "--store", first, "--format", "full", "--key", "env:OLD", "-o", file)
    assert run("import", "--store", second, "--key", "env:NEW", file).returncode == 0
    chat, kept = rows_of(second)
    assert chat.owner == owner_of("sk-new")
    assert response_of(kept) == response(2, owner=owner_of("sk-new"))


def test_a_nul_goes_to_postgresql_and_back(
    run: Run, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its texts have none, so that what is stored there has to be written otherwise."""
    file = tmp_path / "a.jsonl"
    monkeypatch.setenv("THE_DATABASE", postgres.database())
    file.write_bytes(EXAMPLE.replace(b'"A"}]', rb'"\u0000"}],"metadata":{"k":"\u0000"}'))
    assert b" 1 imported" in run("import", "--store", "env:THE_DATABASE", file).stderr
    done = run("export", "--store", "env:THE_DATABASE", "--format", "evals")
    line = json.loads(done.stdout)
    assert (line["item"]["metadata"], line["sample"]["output_text"]) == ({"k": "\0"}, "\0")


@pytest.mark.parametrize("format", ["chat", "evals"])
def test_other_formats_come_back_once(run: Run, tmp_path: Path, format: str) -> None:
    first, second, file = tmp_path / "a.db", tmp_path / "b.db", tmp_path / "a.jsonl"
    fill(first, [row(n, metadata={"n": str(n)}) for n in range(300)])
    run("export", "--store", first, "--format", format, "-o", file)
    done = run("import", "--store", second, file)
    assert done.stderr == b"wellspoken: 300 lines: 300 imported, 0 there already, 0 rejected\n"
    assert b" 0 imported, 300 there" in run("import", "--store", second, file).stderr
    rows = rows_of(second)
    assert len(rows) == 300
    for one in rows:
        msgspec.json.decode(one.answer, type=ChatCompletion)
    if format == "chat":
        out = run("export", "--store", second).stdout
        assert sorted(out.splitlines()) == sorted(file.read_bytes().splitlines())
    else:
        assert [one.metadata for one in rows] == [one.metadata for one in rows_of(first)]


def test_a_line_that_comes_twice_is_one_completion(run: Run, tmp_path: Path) -> None:
    db, file = tmp_path / "a.db", tmp_path / "a.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + (EXAMPLE + b"\r\n\n") * 3 + EXAMPLE.replace(b"A", b"B"))
    done = run("import", "--store", db, "--model", "tuned", file)
    assert done.stderr == b"wellspoken: 4 lines: 2 imported, 2 there already, 0 rejected\n"
    assert [one.model for one in rows_of(db)] == ["tuned", "tuned"]


def test_what_is_imported_is_a_keys_own(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, file = tmp_path / "a.db", tmp_path / "a.jsonl"
    monkeypatch.setenv("ALICE", "sk-alice")
    fill(db, [row(1, owner="ab12")])
    file.write_bytes(run("export", "--store", db, "--format", "full").stdout + EXAMPLE)
    done = run("import", "--store", tmp_path / "b.db", "--key", "env:ALICE", file)
    assert b"2 imported" in done.stderr
    assert {one.owner for one in rows_of(tmp_path / "b.db")} == {owner_of("sk-alice")}
    run("import", "--store", tmp_path / "c.db", file)
    assert {one.owner for one in rows_of(tmp_path / "c.db")} == {"ab12", ""}


def test_rejected_lines_are_told_and_the_others_stored(run: Run, tmp_path: Path) -> None:
    db, file, bad = tmp_path / "a.db", tmp_path / "a.jsonl", tmp_path / "bad.jsonl"
    file.write_bytes(b"\n".join([EXAMPLE, b"{", b"", b'{"messages":[]}']))
    done = run("import", "--store", db, file)
    assert done.returncode == 1
    first, second, last = done.stderr.decode().splitlines()
    assert first.startswith("line 2: the line is no JSON object")
    assert second.startswith("line 4: the last message is not the assistant's")
    assert last == "wellspoken: 3 lines: 1 imported, 0 there already, 2 rejected"
    done = run("import", "--store", db, "--rejects", bad, file)
    assert len(done.stderr.splitlines()) == 1
    found = [json.loads(line) for line in bad.read_bytes().splitlines()]
    assert [(one["line"], one["input"]) for one in found] == [(2, "{"), (4, '{"messages":[]}')]
    assert len(rows_of(db)) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["FILE"], "name the store: --config FILE"),
        (["--store", "new.db", "missing.jsonl"], "cannot read missing.jsonl"),
        (["--store", "new.db", "--key", "sk-secret", "FILE"], "--key: write env:NAME or file:PATH"),
        (["--store", "new.db", "--rejects", "FILE", "FILE"], "would overwrite what is read"),
        (["--store", "mysql://u:secret@h/d", "FILE"], "--store is a URL of another kind"),
        (["--store", "new.db", "--model", "\udcff", "FILE"], "--model: it is not UTF-8"),
        (["--store", "~nobody-here/new.db", "FILE"], "there is no such user"),
    ],
)
def test_wrong_usage_is_told(run: Run, tmp_path: Path, options: list[str], words: str) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(EXAMPLE)
    done = run("import", *[str(file) if option == "FILE" else option for option in options])
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr.decode()
    assert b"secret" not in done.stderr
    assert not Path("new.db").exists()
    assert file.read_bytes() == EXAMPLE


def test_a_compressed_file_is_told_once(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(b"\n".join(os.urandom(40).hex().encode() for _ in range(99))))
    done = run("import", "--store", tmp_path / "a.db", file)
    assert done.returncode == 2
    assert done.stderr == b"wellspoken: the file is compressed: zcat FILE | wellspoken import ...\n"


def test_rejects_do_not_overwrite_the_store(run: Run, tmp_path: Path) -> None:
    db, link, file = tmp_path / "a.db", tmp_path / "link", tmp_path / "a.jsonl"
    fill(db, [row(1)])
    link.symlink_to(db)
    file.write_bytes(b"{")
    before = db.read_bytes()
    for name in (db, link):
        done = run("import", "--store", db, "--rejects", name, file)
        assert done.returncode == 2
        assert b"would overwrite the store" in done.stderr
    assert db.read_bytes() == before


@pytest.mark.parametrize(("closed", "code"), [("<&-", 2), ("2>&-", 0), (">&- 2>&-", 0)])
def test_a_stream_that_is_closed_is_no_fault(tmp_path: Path, closed: str, code: int) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(EXAMPLE)
    named = "" if code else str(file)
    line = f"{shlex.join(COMMAND)} --store {tmp_path}/a.db {named} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True)
    assert done.returncode == code, done.stderr
    assert (b"stdin is closed" in done.stderr) == (code == 2)
    if not code:
        assert len(rows_of(tmp_path / "a.db")) == 1


def test_a_store_that_cannot_be_used_is_told_in_a_line(run: Run, tmp_path: Path) -> None:
    db, file = tmp_path / "a.db", tmp_path / "a.jsonl"
    db.write_bytes(b"no database at all, but long enough to be taken for one" * 20)
    file.write_bytes(EXAMPLE)
    done = run("import", "--store", db, file)
    assert done.returncode == 1
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("wellspoken: ") and "a.db" in line


def test_an_unreachable_postgresql_is_told_without_its_password(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(EXAMPLE)
    done = run("import", "--store", "postgresql://u:canary@127.0.0.1:1/x", file)
    assert done.returncode == 1
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("wellspoken: ") and "0 imported" in line
    assert "canary" not in line


def test_an_interrupt_ends_it_and_keeps_what_is_stored(tmp_path: Path) -> None:
    db = tmp_path / "a.db"
    process = subprocess.Popen(
        [*COMMAND, "--store", str(db)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None and process.stderr is not None
    lines = [EXAMPLE.replace(b"A", b"%d" % n) for n in range(256)]
    process.stdin.write(b"\n".join(lines) + b"\n")
    process.stdin.flush()
    while not (db.exists() and _stored(db)):
        assert process.poll() is None
    process.stdin.write(b" ")
    process.stdin.flush()
    block_until(lambda: not _unread(process.stdin))  # it asks for more: what is stored is counted
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    said = process.stderr.read().decode()
    assert said == (
        "wellspoken: interrupted after 256 lines: 256 imported, 0 there already, 0 rejected\n"
    )
    process.stdin.close()
    process.stderr.close()
    assert len(rows_of(db)) == 256


def _unread(pipe: IO[bytes] | None) -> int:
    """Return how many bytes of a pipe nobody has read yet."""
    assert pipe is not None
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def _stored(db: Path) -> bool:
    try:
        return len(rows_of(db)) == 256
    except StoreError as error:  # it is being made
        assert "locked" in str(error), error
        return False


def test_help_begins_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["import", "--help"])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.split("\n")
    assert (lines[2], lines[3][:19]) == ("examples:", "  wellspoken import")
