"""A real Chromium, without a window, for tests of what web pages see.

Where there is none a test skips, unless WELLSPOKEN_REQUIRE_BROWSER is set: then it fails.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

REQUIRE = "WELLSPOKEN_REQUIRE_BROWSER"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def find_browser(environment: dict[str, str]) -> str:
    """Return Chromium's path, or skip the test; `environment`: as the tests were started with."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    found = found or shutil.which("google-chrome")
    if found is None:
        if environment.get(REQUIRE):
            pytest.fail(f"{REQUIRE} is set, and there is no browser: install chromium")
        pytest.skip("no Chromium is installed")
    return found


@asynccontextmanager
async def browsing(browser: str, folder: Path, url: str) -> AsyncIterator[None]:
    """Have a page open; `folder` is the browser's, empty before."""
    process = await _start(browser, folder, url, "--remote-debugging-port=0")
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def dump_page(browser: str, folder: Path, url: str) -> str:
    """Return the document that a page became once it was loaded."""
    process = await _start(browser, folder, url, "--dump-dom")
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def _start(browser: str, folder: Path, url: str, *flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        browser,
        *FLAGS,
        f"--user-data-dir={folder}",
        *flags,
        url,
        env={**os.environ, "HOME": str(folder)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
