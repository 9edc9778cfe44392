"""Where a backend is, no error tells those who reach the proxy from other machines."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tests.fakes.upstream import Cut, Stall, Step, Upstream, whole
from tests.ports import free_port
from tests.proxy.conftest import CHAT, StartProxy
from wellspoken.adapters.servers import registry
from wellspoken.proxy.config.tables import Backend, Engine
from wellspoken.proxy.config.values import find_places
from wellspoken.proxy.upstream.client import HIDDEN
from wellspoken.proxy.upstream.failures import Peer, not_connected
from wellspoken.proxy.upstream.target import Target, TargetSettings

KEY = {"Authorization": "Bearer key-of-a-client"}
UNKNOWN = "llm-prod-7.corp.internal"  # .internal is reserved, so no name service knows it
HTML = whole(b"<html>no</html>", 200, "text/html")


@pytest.fixture
def outside(tmp_path: Path) -> dict[str, dict[str, object]]:
    """Give what makes a proxy one that other machines reach."""
    keys = tmp_path / "keys"
    keys.write_text("key-of-a-client\n")
    return {"server": {"listen": "0.0.0.0:0"}, "auth": {"keys": [f"file:{keys}"]}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script", [[Cut()], [Stall()], HTML, [b"SSH-2.0-OpenSSH_9.2\r\n", Cut()], [b"HTTP/1.1 200"]]
)
async def test_no_failure_tells_where_the_backend_is(
    upstream: Upstream,
    start_proxy: StartProxy,
    outside: dict[str, dict[str, object]],
    script: list[Step],
    stream: bool,
) -> None:
    for path in (CHAT, "/health", "/v1/models"):
        upstream.script(path, script)
    timeouts = {"first_token_body": 0.2, "first_token_stream": 0.2, "probe": 0.2}
    timeouts["between_chunks"] = 0.2
    proxy = await start_proxy(upstream, name="blue", timeouts=timeouts, **outside)
    where = upstream.url.removeprefix("http://")
    said = ""
    async with await proxy.chat(KEY, stream=stream) as answer:
        said += await answer.text() + str(answer.headers)
    for path in ("/readyz", "/", "/v1/models", "/v1/capabilities"):
        async with proxy.session.get(proxy.url(path), headers=KEY) as answer:
            said += await answer.text() + str(answer.headers)
    assert "The backend blue " in said
    assert where not in said and "127.0.0.1" not in said


@pytest.mark.parametrize("host", [UNKNOWN, "127.0.0.1"])
async def test_nor_one_that_is_not_reached(
    start_proxy: StartProxy, outside: dict[str, dict[str, object]], host: str
) -> None:
    url = f"http://{host}:{free_port()}"
    proxy = await start_proxy({"url": url, "name": "blue"}, **outside)
    async with await proxy.chat(KEY) as answer:
        assert answer.status == 502
        said = await answer.text()
    async with proxy.session.get(proxy.url("/readyz")) as answer:
        assert answer.status == 503
        said += await answer.text()
    assert "backend blue" in said and host not in said


async def test_what_a_backend_itself_says_of_it_is_hidden(
    upstream: Upstream, start_proxy: StartProxy, outside: dict[str, dict[str, object]]
) -> None:
    error = {"error": {"message": f"upstream {upstream.url}/v1 says no", "type": "x"}}
    upstream.script(CHAT, whole(error, 400))
    proxy = await start_proxy(upstream, **outside)
    async with await proxy.chat(KEY) as answer:
        said = json.loads(await answer.text())["error"]["message"]
    assert said == f"upstream {HIDDEN}/v1 says no"


async def test_on_this_machine_alone_the_url_helps(start_proxy: StartProxy) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    proxy = await start_proxy({"url": url, "name": "blue"})
    error = await proxy.error(502)
    assert f"The backend at {url} refused" in error["message"]


async def test_where_a_model_lies_is_hidden() -> None:
    engine = Engine(kind="llamacpp", model="~/models/secret.gguf", mmproj="/srv/eye.gguf")
    home = str(Path("~/models/secret.gguf").expanduser())
    settings = TargetSettings(places=tuple(find_places(engine)))
    target = Target("engine", registry.find("llamacpp"), None, settings=settings)
    for place in ("~/models/secret.gguf", home, "/srv/eye.gguf"):
        said = target.settings.hide_places(f"cannot load {place}: no file")
        assert said == f"cannot load {HIDDEN}: no file"


@pytest.mark.parametrize(
    ("url", "places"),
    [
        ("http://vllm:8000/v1", ["http://vllm:8000", "vllm:8000"]),
        (
            "https://llm.corp/a",
            ["https://llm.corp/a", "llm.corp"],
        ),
        ("unix:/run/llm.sock", ["unix:/run/llm.sock", "/run/llm.sock"]),
        ("http://127.0.0.1:8000", ["http://127.0.0.1:8000", "127.0.0.1:8000"]),
        ("http://[fd00::1]:80", ["http://[fd00::1]:80", "[fd00::1]:80", "fd00::1"]),
    ],
)
def test_places_of_a_backend(url: str, places: list[str]) -> None:
    assert find_places(Backend(url=url)) == places


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "vllm ended: File '/opt/venv/lib/x.py', line 3; GET /v1/models at http://a/b/c",
            f"vllm ended: File '{HIDDEN}', line 3; GET /v1/models at http://a/b/c",
        ),
        (
            "no model file /data/real.gguf, to which x links",
            f"no model file {HIDDEN}, to which x links",
        ),
        ("cache (~/.cache/huggingface/hub)", f"cache ({HIDDEN})"),
        ("unix:/run/user/0/x.sock: and/or 3/4/5, /readyz", f"unix:{HIDDEN}: and/or 3/4/5, /readyz"),
    ],
)
def test_paths_in_an_engines_words_are_hidden(text: str, told: str) -> None:
    """As in its log, of which an error quotes the end: of files that no configuration names."""
    assert TargetSettings(elsewhere=True).hide_places(text) == told
    assert TargetSettings().hide_places(text) == text


async def test_an_address_that_a_name_has_is_no_word_of_the_systems() -> None:
    """asyncio without uvloop says it in the place of why."""
    error = OSError(errno.EHOSTUNREACH, "Connect call failed ('10.1.2.3', 8000)")
    for url in ("http://gpu.corp:8000", "unix:/run/x.sock"):
        said = str(not_connected(Peer.of(url, alias="blue"), error, 1.0))
        assert "10.1.2.3" not in said and "(No route to host)" in said


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_where_a_tokenizer_lies_is_hidden(
    upstream: Upstream,
    start_proxy: StartProxy,
    outside: dict[str, dict[str, object]],
    tmp_path: Path,
    elsewhere: bool,
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    proxy = await start_proxy(upstream, tokenizer=str(path), **(outside if elsewhere else {}))
    path.unlink()
    async with await proxy.chat(KEY) as answer:
        said = await answer.text()
        assert answer.status == 500 and "tokenizer_unusable" in said
    assert (str(path) in said) != elsewhere


def test_a_model_by_its_public_name_is_no_place() -> None:
    assert find_places(Engine(kind="vllm", model="Qwen/Qwen3-0.6B")) == []
