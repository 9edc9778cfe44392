"""A person asks through Open WebUI, in a real browser: with the proxy, and of the servers alone."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.browser import find_browser
from tests.documents import blocks
from tests.live.clients.conftest import client_environment
from tests.live.clients.pages.replay import replaying
from tests.live.clients.pages.servers import serving_llamacpp
from tests.live.clients.serving import running_proxy
from tests.live.open_webui.conftest import OPEN_WEBUI
from tests.live.open_webui.devtools import Page, opened
from tests.models.tiny import TEXT, write_model
from tests.ports import free_port

START_SECONDS = 300
CONTEXT = (
    65_536  # two slots; Open WebUI tells the model of its tools in 24,000 tokens of the tiny one
)
PICTURE = (1000, 560)
REPLAYED = {
    "message-in-chunk": "constructed/portkey-message-in-chunk",
    "keepalive": "constructed/chunks-of-nothing",
    "lost": "ollama/0.32.6-stream-error-lost",
    "aborted": "vllm/0.32-stream-abort",
}
"""What the proxy calls each answer that is replayed, so that both may be chosen."""


@pytest.fixture(scope="module")
def web(
    environment_as_given: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The base URL of an Open WebUI that has the proxy's models, and the replayed ones."""
    folder = tmp_path_factory.mktemp("web")
    program = Path(environment_as_given[OPEN_WEBUI])
    model = write_model(folder / "tiny.gguf", context=CONTEXT)
    with (
        serving_llamacpp(model, context=CONTEXT) as llamacpp,
        replaying([*REPLAYED.values()]) as replay,
        _proxying(folder, llamacpp, replay) as proxy,
        _serving(folder, program, proxy, replay) as url,
    ):
        yield url


@contextmanager
def _proxying(folder: Path, llamacpp: str, replay: str) -> Iterator[str]:
    aliases = ", ".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in REPLAYED.items())
    config = folder / "wellspoken.toml"
    config.write_text(
        '[server]\nlisten = "127.0.0.1:0"\n'
        f'[[backend]]\nname = "llamacpp"\nurl = "{llamacpp}"\nmodels = ["my-model"]\n'
        f'[[backend]]\nname = "replay"\nurl = "{replay}"\nadapter = "general"\n'
        f"aliases = {{ {aliases} }}\n"
    )
    arguments = ("--config", str(config), "--key", "env:CLIENT_KEY")
    with running_proxy(arguments, folder / "log", {"CLIENT_KEY": "unused"}) as proxy:
        yield proxy


@contextmanager
def _serving(folder: Path, program: Path, proxy: str, replay: str) -> Iterator[str]:
    """Run the guide's command, with a second server beside the proxy, until the block ends."""
    [command] = [one.text for one in blocks("sh") if one.document.name == "open-webui.md"]
    *settings, name, serve = shlex.split(command)
    assert (name, serve) == ("open-webui", "serve")
    given = dict(setting.split("=", 1) for setting in settings)
    assert given.pop("OPENAI_API_BASE_URL") == "http://127.0.0.1:8010/v1"
    given["OPENAI_API_BASE_URLS"] = f"{proxy}/v1;{replay}/v1"
    given["OPENAI_API_KEYS"] = given.pop("OPENAI_API_KEY") + ";unused"
    quiet = {"OFFLINE_MODE": "True", "DATA_DIR": str(folder / "data"), "WEBUI_SECRET_KEY": "any"}
    extra = {"ENABLE_TITLE_GENERATION": "False", "ENABLE_FOLLOW_UP_GENERATION": "False"}
    extra |= {"ENABLE_TAGS_GENERATION": "False"}
    port = free_port()
    with (folder / "web.log").open("wb") as said:
        process = subprocess.Popen(
            [program, "serve", "--host", "127.0.0.1", "--port", str(port)],
            cwd=folder,
            env=client_environment(folder) | given | quiet | extra,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + START_SECONDS
        while not _is_up(url):
            assert process.poll() is None and time.monotonic() < end, folder / "web.log"
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(START_SECONDS)


def _is_up(url: str) -> bool:
    try:
        with urlopen(f"{url}/health") as answer:
            return bool(json.load(answer)["status"])
    except OSError:
        return False


@pytest.fixture
async def page(
    web: str, environment_as_given: dict[str, str], tmp_path: Path
) -> AsyncIterator[Page]:
    """A page of a new browser."""
    browser = find_browser(environment_as_given)
    async with opened(browser, tmp_path / "browser", "about:blank") as found:
        width, height = PICTURE
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await found.call("Emulation.setDeviceMetricsOverride", **size)
        yield found


NEWS = "[...document.querySelectorAll('button')].find((one) => one.innerText.includes('s Go!'))"
BOX = "document.querySelector('#chat-input')"
# An answer has its buttons once it is complete.
ANSWER = "document.querySelector('.regenerate-response-button')"
TOLD = "[...document.querySelectorAll('[id^=message-]')].map((one) => one.innerText).join()"


async def ask(page: Page, web: str, model: str) -> str:
    """Ask a model in a new chat; return what the page shows of it once the answer is complete."""
    await page.call("Page.navigate", url=f"{web}/?{urlencode({'models': model})}")
    chosen = f"document.body.innerText.includes({json.dumps(model)})"
    await page.wait_for(f"({BOX} && {chosen}) || {NEWS}")
    if await page.evaluate(f"!!{NEWS}"):  # to whom was never here before
        await page.evaluate(f"{NEWS}.click()")
    await page.wait_for(f"{BOX} && {chosen} && !{NEWS}")
    await page.evaluate(f"{BOX}.focus()")
    await page.type_line("Say hello.")
    await page.wait_for(ANSWER)
    return str(await page.evaluate(TOLD))


async def test_an_answer_of_a_real_llamacpp(page: Page, web: str) -> None:
    assert TEXT in await ask(page, web, "my-model")
    picture = await page.take_picture()
    assert picture.startswith(b"\x89PNG") and len(picture) < 150_000
    if wanted := os.environ.get("PICTURE"):
        await asyncio.to_thread(Path(wanted).write_bytes, picture)


@pytest.mark.parametrize("name", ["message-in-chunk", "keepalive"])
async def test_an_answer_that_is_empty_without_the_proxy(page: Page, web: str, name: str) -> None:
    assert "Paris." not in await ask(page, web, REPLAYED[name])
    assert "Paris." in await ask(page, web, name)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [("lost", "Paris", "ended in the middle"), ("aborted", "Par", "backend aborted the request")],
)
async def test_half_an_answer_that_is_whole_without_the_proxy(
    page: Page, web: str, name: str, text: str, reason: str
) -> None:
    alone = await ask(page, web, REPLAYED[name])
    assert text in alone and reason not in alone
    behind = await ask(page, web, name)
    assert text in behind and reason in behind
