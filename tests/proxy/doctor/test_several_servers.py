"""`wellspoken doctor` of several URLs, and of each server of a configuration file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conforming import MODEL, body
from tests.fakes.upstream import Script, Upstream, whole
from wellspoken.proxy.cli.main import main

CHAT, MODELS = "/v1/chat/completions", "/v1/models"
SECRET = "sk-canary-77aa01c3"
LISTED: Script = whole({"object": "list", "data": [{"id": MODEL, "owned_by": "somebody"}]})


@pytest.fixture
async def second() -> AsyncIterator[Upstream]:
    """Another server."""
    async with Upstream() as upstream:
        yield upstream


def answer(upstream: Upstream, **more: Any) -> None:
    upstream.script(MODELS, LISTED)
    upstream.script(CHAT, whole({**body(model=MODEL), **more}))


async def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Return the exit code, and what was said on stdout and stderr."""
    code = await asyncio.to_thread(main, ["doctor", "--only", "usage", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


async def test_urls_are_examined_one_after_another(
    upstream: Upstream, second: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(upstream)
    await second.refuse()
    code, out, _ = await doctor(capsys, upstream.url, "--json", second.url)
    reports = json.loads(out)
    assert [report["url"] for report in reports] == [upstream.url, second.url]
    assert ["name" in report for report in reports] == [False, False]
    assert [probe["result"] for probe in reports[0]["probes"]] == ["pass"]
    assert reports[0]["error"] is None and "refused the connection" in reports[1]["error"]
    assert code == 2
    code, out, err = await doctor(capsys, second.url, upstream.url)
    assert code == 2
    assert err.startswith(f"wellspoken: {second.url}: The backend at {second.url} refused")
    assert out.count("wellspoken doctor http://") == 1 and f"doctor {upstream.url}, model" in out
    code, out, _ = await doctor(capsys, upstream.url, upstream.url, "--markdown")
    assert (code, out.count("\n# wellspoken doctor ")) == (0, 1)


async def test_the_worst_exit_code_counts(
    upstream: Upstream, second: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(upstream)
    answer(second, choices="none")
    assert (await doctor(capsys, "--only", "chat-body", second.url, upstream.url))[0] == 1


async def test_the_servers_of_a_file_are_asked_as_it_says(
    upstream: Upstream,
    second: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CANARY", SECRET)
    answer(upstream)
    answer(second)
    file = tmp_path / "w.toml"
    file.write_text(
        "[server]\nlisten = '0.0.0.0:1'\n"  # without keys no proxy starts, but these are servers
        f"[[backend]]\nname = 'a'\nurl = ['{upstream.url}', '{second.url}']\nmodels = ['m']\n"
        "key = 'env:CANARY'\nheaders = { x-tenant = 'blue' }\nadapter = 'vllm'\n"
        f"[[backend]]\nname = 'b'\nurl = '{second.url}'\naliases = {{ n = 'theirs' }}\n"
    )
    code, out, err = await doctor(capsys, "--config", str(file), "--json")
    reports = json.loads(out)
    assert [(each["name"], each["model"]) for each in reports] == [
        ("a/1", "m"),
        ("a/2", "m"),
        ("b", "theirs"),
    ]
    assert [each["backend"] == "adapter vllm" for each in reports] == [True, True, False]
    assert code == 0
    assert SECRET not in out + err
    sent = {(one.header("Authorization"), one.header("x-tenant")) for one in upstream.requests}
    assert sent == {(f"Bearer {SECRET}", "blue")}
    assert {one.header("Authorization") for one in second.requests} == {f"Bearer {SECRET}", None}
    code, out, _ = await doctor(capsys, "--config", str(file), "--model", "other")
    assert f"wellspoken doctor a/2, {second.url}, model other: adapter vllm" in out


async def test_a_server_whose_key_is_not_there_keeps_nobody_from_the_others(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(upstream)
    file = tmp_path / "w.toml"
    file.write_text(
        "[[backend]]\nname = 'a'\nurl = 'http://x'\nmodels = ['m']\nkey = 'env:NO_SUCH_KEY'\n"
        f"[[backend]]\nname = 'b'\nurl = '{upstream.url}'\nmodels = ['m']\n"
    )
    code, out, err = await doctor(capsys, "--config", str(file))
    assert code == 2
    assert err == (
        "wellspoken: a, http://x: key: the variable NO_SUCH_KEY is not set. Set it, or change "
        "key.\n"
    )
    assert f"wellspoken doctor b, {upstream.url}, model m" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "w.toml", "http://x"], "--config names the servers. Leave the URL out"),
        (["--config", "w.toml", "--compare", "a", "b"], "--compare names both servers. Leave --c"),
        (["--config", "nowhere.toml"], "cannot read nowhere.toml: No such file"),
        (["--config", "w.toml"], "w.toml:2:7: backend[0]: url: 'ftp://x' is no http(s) URL."),
        (["--config", "engine.toml"], "engine.toml: it has no [[backend]], and an engine is exam"),
        ([], "no URL."),
    ],
)
def test_what_names_no_server(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w.toml").write_text("[[backend]]\nurl = 'ftp://x'\n")
    Path("engine.toml").write_text("[engine]\nkind = 'vllm'\nmodel = 'a/b'\n")
    assert main(["doctor", *arguments]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"wellspoken: {words}") and said.out == ""
