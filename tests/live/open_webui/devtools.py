"""A page in a real Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from tests.browser import browsing

SECONDS = 120


class PageError(Exception):
    """The browser refused a command; the text is why."""


class Page:
    """The only page of a browser. `session` of the protocol: one command at a time."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; what the browser says meanwhile is passed over."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(SECONDS):
            while (said := await self._socket.receive_json()).get("id") != number:
                pass
        if "error" in said:
            raise PageError(said["error"]["message"])
        result: dict[str, Any] = said["result"]
        return result

    async def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript expression is true, looking whenever the document changes."""
        program = f"""new Promise((resolve) => {{
            const look = () => ({condition}) && (observer.disconnect(), resolve(true));
            const observer = new MutationObserver(look);
            const all = {{ subtree: true, childList: true, characterData: true, attributes: true }};
            observer.observe(document, all);
            look();
        }})"""
        while True:
            try:
                said = await self.call("Runtime.evaluate", expression=program, awaitPromise=True)
            except PageError as error:
                if "context was destroyed" not in str(error):
                    raise
                continue  # the page was left for another, where it may come true
            assert "exceptionDetails" not in said, said
            return

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        said = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    async def type_line(self, text: str) -> None:
        """Type a line into what has the focus, and press Enter."""
        await self.call("Input.insertText", text=text)
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    async def take_picture(self) -> bytes:
        """Return the page as a PNG."""
        said = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(said["data"])


@asynccontextmanager
async def opened(browser: str, folder: Path, url: str) -> AsyncIterator[Page]:
    """Have a page open; `folder` is the browser's, empty before."""
    async with browsing(browser, folder, url), ClientSession() as session:
        port = await _port(folder / "DevToolsActivePort")
        async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
            pages = [one for one in json.loads(await response.text()) if one["type"] == "page"]
        address = pages[0]["webSocketDebuggerUrl"]
        async with session.ws_connect(address, max_msg_size=0) as socket:
            yield Page(socket)


async def _port(file: Path) -> int:
    """Return the port that the browser listens on, which it writes into a file once it does."""
    async with asyncio.timeout(SECONDS):
        while not (file.exists() and (lines := file.read_text().splitlines())):
            await asyncio.sleep(0.05)
    return int(lines[0])
