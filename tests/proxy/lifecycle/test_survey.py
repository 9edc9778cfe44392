"""`wellspoken check` asks servers that share a model whether they fit each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstream import Stall, Upstream, whole
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.upstream import detector

MODELS, TOKENIZE = "/v1/models", "/tokenize"
SECRET = "sk-canary-90ab"


@pytest.fixture
async def second() -> AsyncIterator[Upstream]:
    """Another server."""
    async with Upstream() as upstream:
        yield upstream


def serve(
    upstream: Upstream,
    *names: str,
    length: int | None = 4096,
    ids: Sequence[int] = (5, 6, 7),
    **meta: Any,
) -> None:
    """Have a server list models of this length, and tell these ids of any text."""
    entry: dict[str, Any] = {} if length is None else {"max_model_len": length}
    entry |= {"meta": meta} if meta else {}
    listed = [{"id": name, "object": "model", **entry} for name in names]
    upstream.script(MODELS, whole({"object": "list", "data": listed}))
    upstream.script(TOKENIZE, whole({"count": len(ids), "tokens": list(ids)}))


def write(folder: Path, first: Upstream, other: Upstream, more: str = "") -> Path:
    """Return a configuration of one backend with both servers; `more` of its table."""
    file = folder / "w.toml"
    text = f"[[backend]]\nname = 'gpu'\nurl = ['{first.url}', '{other.url}']\nadapter = 'vllm'\n"
    file.write_text(f"{text}{more}\n[timeouts]\nprobe = 60\n")
    return file


async def check(
    capsys: pytest.CaptureFixture[str], file: Path, *options: str, code: int = 0
) -> list[dict[str, Any]]:
    """Return what `wellspoken check` warns of, but for a port that somebody has."""
    arguments = ["check", "--json", "--listen", "127.0.0.1:0", *options, str(file)]
    assert await asyncio.to_thread(main, arguments) == code
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    found: list[dict[str, Any]] = json.loads(said.out)["findings"]
    return found


async def one(capsys: pytest.CaptureFixture[str], file: Path) -> str:
    """Return the only warning, which is about the second URL."""
    (found,) = await check(capsys, file)
    at = file.read_text().splitlines()[2].rindex("'http") + 1
    place = (found["severity"], found["key"], found["line"], found["column"])
    assert place == ("warning", "backend[0].url[1]", 3, at)
    message: str = found["message"]
    assert message.startswith("backend[0].url[1]: ")
    return message.removeprefix("backend[0].url[1]: ")


async def test_servers_that_fit_each_other_are_good(
    upstream: Upstream, second: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(upstream, "m", "n")
    serve(second, "n", "m", "more")
    assert await check(capsys, write(tmp_path, upstream, second, "models = ['m', 'n']")) == []
    asked = {request.target for request in upstream.requests}
    assert asked == {MODELS, TOKENIZE}  # nothing is generated
    bodies = [json.loads(r.body) for r in upstream.requests if r.target == TOKENIZE]
    assert sorted(each["model"] for each in bodies) == ["m", "n"]
    assert {each["add_special_tokens"] for each in bodies} == {False}


async def test_nobody_is_asked_with_file_only_or_where_something_is_wrong(
    upstream: Upstream, second: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(upstream, "m")
    file = write(tmp_path, upstream, second, "models = ['m']")
    assert await check(capsys, file, "--file-only") == []
    file = write(tmp_path, upstream, second, "models = ['m']\nkey = 'env:NO_SUCH_KEY'")
    assert [each["severity"] for each in await check(capsys, file, code=1)] == ["error"]
    file.write_text(
        f"[[backend]]\nname = 'a'\nurl = '{upstream.url}'\nmodels = ['m']\n"
        f"[[backend]]\nname = 'b'\nurl = '{second.url}'\nmodels = ['n']\n"
    )
    assert await check(capsys, file) == []
    assert (upstream.requests, second.requests) == ([], [])


async def test_a_server_that_is_not_there(
    upstream: Upstream, second: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(upstream, "m", "n")
    await second.refuse()
    said = await one(capsys, write(tmp_path, upstream, second, "models = ['m', 'n']"))
    assert said.startswith(f"The backend at {second.url} refused the connection.")


async def test_servers_that_hang(
    upstream: Upstream, second: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in (upstream, second):
        each.script(MODELS, [Stall()])
    file = write(tmp_path, upstream, second, "models = ['m']")
    file.write_text(file.read_text().replace("probe = 60", "probe = 0.1"))
    found = await check(capsys, file)
    assert [each["key"] for each in found] == ["backend[0].url[0]", "backend[0].url[1]"]
    assert f"The backend at {second.url} did not answer GET /v1/models" in found[1]["message"]


async def test_a_server_that_wants_another_key(
    upstream: Upstream,
    second: Upstream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    serve(upstream, "m")
    second.script(MODELS, whole({"error": {"message": SECRET}}, 401))
    monkeypatch.setenv("CANARY", SECRET)
    file = write(tmp_path, upstream, second, "models = ['m']\nkey = 'env:CANARY'")
    assert "answered GET /v1/models with status 401" in await one(capsys, file)
    assert {each.header("Authorization") for each in upstream.requests} == {f"Bearer {SECRET}"}
    # With the clients' own keys nobody here has one to ask with.
    assert await check(capsys, write(tmp_path, upstream, second, "auth = 'pass'")) == []


async def test_a_model_that_one_does_not_list(
    upstream: Upstream, second: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(upstream, "m")
    serve(second, *"abcdefg")
    said = await one(capsys, write(tmp_path, upstream, second, "models = ['m']"))
    assert said.startswith("gpu/2 lists 'a', 'b', 'c', 'd', 'e' and 2 more, not 'm'.")
    said = await one(capsys, write(tmp_path, upstream, second, "aliases = { gpt = 'm' }"))
    assert ", not 'm'. Serve that there under this name" in said
    said = await one(capsys, write(tmp_path, upstream, second))  # no names: what the first lists
    assert said.startswith("gpu/2 lists 'a', 'b',") and "but gpu/1 'm'." in said


async def test_servers_of_one_model_answer_under_any_name(
    upstream: Upstream, second: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(upstream, "model.gguf")
    serve(second, "model.gguf")
    assert await check(capsys, write(tmp_path, upstream, second, "models = ['m']")) == []
    serve(upstream, "a.gguf")
    found = await check(capsys, write(tmp_path, upstream, second, "models = ['m']"))
    assert [each["key"] for each in found] == ["backend[0].url[0]", "backend[0].url[1]"]
    serve(upstream, "m:latest")
    serve(second, "m:latest", "n:latest")
    assert await check(capsys, write(tmp_path, upstream, second, "models = ['m']")) == []


async def test_another_context(
    upstream: Upstream, second: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(upstream, "m", length=8192)
    serve(second, "m", length=4096)
    for more in ("models = ['m']", ""):
        said = await one(capsys, write(tmp_path, upstream, second, more))
        assert said.startswith("gpu/2 has a context of 4096 tokens for 'm', gpu/1 one of 8192.")
    serve(second, "m", length=None)  # not told is not another
    assert await check(capsys, write(tmp_path, upstream, second, "models = ['m']")) == []


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ((5, 6, 8), "one text has other token ids"),
        ((5, 6), "one text is 2 tokens, not 3"),
    ],
)
async def test_another_vocabulary(
    upstream: Upstream,
    second: Upstream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ids: Sequence[int],
    why: str,
) -> None:
    serve(upstream, "m")
    serve(second, "m", ids=ids)
    said = await one(capsys, write(tmp_path, upstream, second, "models = ['m']"))
    assert said.startswith(f"gpu/2 has another vocabulary for 'm' than gpu/1 ({why}).")
    second.script(TOKENIZE, whole({"detail": "Not Found"}, 404))  # not told is not another
    assert await check(capsys, write(tmp_path, upstream, second, "models = ['m']")) == []


async def test_another_number_of_token_ids(
    upstream: Upstream, second: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(upstream, "m", n_vocab=32000)
    serve(second, "m", n_vocab=512)
    file = write(tmp_path, upstream, second, "models = ['m']")
    file.write_text(file.read_text().replace("vllm", "llamacpp"))
    assert "than gpu/1 (512 token ids, not 32000)." in await one(capsys, file)


async def test_backends_of_one_model_are_compared_as_well(
    upstream: Upstream, second: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A canary of another model: each is asked for what it is told."""
    serve(upstream, "m", length=8192)
    serve(second, "theirs", "m", length=4096)
    file = tmp_path / "w.toml"
    file.write_text(
        f"[[backend]]\nname = 'a'\nurl = '{upstream.url}'\nmodels = ['m']\nadapter = 'vllm'\n"
        f"[[backend]]\nname = 'b'\nurl = '{second.url}'\nmodels = ['m']\nadapter = 'vllm'\n"
        "upstream_model = 'theirs'\nweight = 0.05\n"
    )
    (found,) = await check(capsys, file)
    assert (found["key"], found["line"]) == ("backend[1].url", 8)
    assert (
        "backend[1].url: b has a context of 4096 tokens for 'm', a one of 8192" in found["message"]
    )
    bodies = [json.loads(r.body) for r in second.requests if r.target == TOKENIZE]
    assert [each["model"] for each in bodies] == ["theirs"]


async def test_two_real_servers_with_two_tokenizers(
    llama_server: str,
    llama_server_bpe: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What they are is detected, and so where the ids of a text can be had."""
    monkeypatch.setattr(detector, "SECONDS", 60.0)
    file = tmp_path / "w.toml"
    table = "[timeouts]\nprobe = 60\n[[backend]]\nname = 'tiny'\nmodels = ['tiny']\nurl = "
    file.write_text(f"{table}['{llama_server}', '{llama_server_bpe}']\n")
    (found,) = await check(capsys, file)
    assert (found["key"], found["line"]) == ("backend[0].url[1]", 6)
    assert "tiny/2 has another vocabulary for 'tiny' than tiny/1 (" in found["message"]
    same = llama_server.replace("127.0.0.1", "localhost")
    file.write_text(f"{table}['{llama_server}', '{same}']\n")
    assert await check(capsys, file) == []
