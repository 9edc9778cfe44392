"""Tokenizer settings: found at the start, read in a thread at first use, not downloaded unasked."""

from __future__ import annotations

import asyncio
import base64
import threading
from pathlib import Path

import pytest

from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import StartProxy
from tests.proxy.endpoints.test_chat_body import PLAIN
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.config import load
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.upstream.tokenizer import Tokenizer, cached_file


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """A .tiktoken file: every byte, and one longer token."""
    tokens = [bytes([value]) for value in range(256)] + [b"Hi"]
    file = tmp_path / "tiny.tiktoken"
    file.write_bytes(
        b"".join(base64.b64encode(t) + b" %d\n" % rank for rank, t in enumerate(tokens))
    )
    return file


async def test_a_file_is_read_once_and_in_a_thread(
    ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = []
    read = Path.read_bytes

    def spy(path: Path) -> bytes:
        readers.append(threading.current_thread())
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", spy)
    tokenizer = Tokenizer(str(ranks))
    assert readers == []
    first, second = await asyncio.gather(tokenizer.vocabulary(), tokenizer.vocabulary())
    assert first is second
    assert first.by_id(256) == b"Hi"
    assert len(readers) == 1
    assert readers[0] is not threading.main_thread()


async def test_the_vocabulary_is_the_backends_own(
    upstream: Upstream, start_proxy: StartProxy, ranks: Path
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(
        {"name": "a", "url": upstream.url, "models": ["a"], "tokenizer": str(ranks)},
        {"name": "b", "url": upstream.url, "models": ["b"]},
    )
    one, two = proxy.service.state.router.targets
    assert one.tokens.vocabulary is None
    for model in ("a", "b"):
        async with await proxy.chat(model=model) as response:
            assert response.status == 200
    assert one.tokens.vocabulary is not None
    assert two.tokens.vocabulary is None


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("x.tiktoken", b"no ranks here", "line 1"),
        ("tokenizer.json", b"{}", "tokenizer.json"),
        ("tokenizer.json", b"[" * 100_000, "tokenizer.json"),
    ],
)
async def test_a_file_that_is_no_tokenizer_fails_requests_clearly(
    upstream: Upstream,
    start_proxy: StartProxy,
    tmp_path: Path,
    name: str,
    data: bytes,
    words: str,
) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    proxy = await start_proxy(upstream, tokenizer=str(file))
    for _ in range(2):
        error = await proxy.error(500)
        assert words in error["message"]
        assert error["code"] == "tokenizer_unusable"
    assert upstream.requests == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("nothing.json", "no readable file and no known encoding"),
        ("~no-such-user/t.json", "no readable file"),
        ("o200k", "o200k_base"),
        ("{folder}/tokenizer.model", "neither a .tiktoken file nor a tokenizer.json"),
        ("{folder}", "no readable file"),
    ],
)
async def test_a_setting_that_cannot_be_is_an_error_at_the_start(
    tmp_path: Path, setting: str, words: str
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    backend = {"url": "x", "tokenizer": setting.format(folder=tmp_path)}
    with pytest.raises(ConfigError) as caught:
        build(load(None, {"backend": [backend]}, {}))
    assert str(caught.value).startswith("backend[0].tokenizer: ")
    assert words in str(caught.value)


def test_an_encoding_outside_the_cache_is_an_error_at_the_start(tmp_path: Path) -> None:
    environ = {"TIKTOKEN_CACHE_DIR": str(tmp_path)}
    with pytest.raises(ConfigError, match="tokenizer_download = true"):
        Tokenizer("cl100k_base", environ=environ)
    Tokenizer("cl100k_base", download=True, environ=environ)


async def test_a_damaged_cache_is_not_downloaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    file = cached_file("cl100k_base", {"TIKTOKEN_CACHE_DIR": str(tmp_path)})
    file.write_bytes(b"damaged")
    with pytest.raises(RequestError, match="is damaged"):
        await Tokenizer("cl100k_base").vocabulary()
    assert file.read_bytes() == b"damaged"


@pytest.mark.parametrize("allowed", [True, False])
async def test_an_encoding_comes_from_tiktoken(
    ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """The encoding's file is tiny here, so tiktoken itself is stood in for, and its hash."""
    import tiktoken

    from wellspoken.proxy.upstream import tokenizer as module

    tiny = tiktoken.Encoding("tiny", pat_str=".", mergeable_ranks={b"H": 0}, special_tokens={})
    monkeypatch.setattr(tiktoken, "get_encoding", {"cl100k_base": tiny}.__getitem__)
    file = cached_file("cl100k_base", {"TIKTOKEN_CACHE_DIR": str(tmp_path)})
    if not allowed:
        file.write_bytes(b"H")
        digest = "44bd7ae60f478fae1061e11a7739f4b94d1daf917982d33b6fc8a01a63f89c21"
        monkeypatch.setitem(module._FILES, "cl100k_base", ("cl100k_base", digest))
    setting = Tokenizer(
        "cl100k_base", download=allowed, environ={"TIKTOKEN_CACHE_DIR": str(tmp_path)}
    )
    assert (await setting.vocabulary()).by_id(0) == b"H"


def test_the_cache_is_where_tiktoken_has_it() -> None:
    """tiktoken's own rule (load.py): SHA-1 of the address, in one of two variables' folders."""
    name = "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
    assert cached_file("cl100k_base", {"TIKTOKEN_CACHE_DIR": "/a"}) == Path("/a") / name
    assert cached_file("cl100k_base", {"DATA_GYM_CACHE_DIR": "/b"}) == Path("/b") / name
    assert cached_file("cl100k_base", {}).parts[-2:] == ("data-gym-cache", name)
