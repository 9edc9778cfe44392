"""The real command in front of llama.cpp, and what the model's weights say it answers."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.live.clients.direct import Direct
from tests.waiting import SECONDS
from wellspoken.engine.unix_http import Client

TOLERANCE = 1e-4

Rows = list[tuple[str, float]]
"""The text and the logprob of each token."""


def check_rows(found: Sequence[Sequence[Any]], expected: Rows) -> None:
    """Raise AssertionError unless the texts are equal, and the numbers to within TOLERANCE."""
    assert [text for text, _ in found] == [text for text, _ in expected]
    for (text, number), (_, own) in zip(found, expected, strict=True):
        assert math.isclose(number, own, rel_tol=0, abs_tol=TOLERANCE), (text, number, own)


@dataclass(frozen=True)
class Served:
    """A running proxy (its base URL), its llama.cpp's socket, and the model's own sums.

    Both serve the model under the name "tiny".
    """

    proxy: str
    llamacpp: Path
    direct: Direct

    def tokens(self, text: str) -> list[int]:
        """Return llama.cpp's token ids of `text`, without BOS."""
        asked = {"content": text, "add_special": False, "parse_special": True}
        return list(post(self.llamacpp, "/tokenize", asked)["tokens"])

    def text(self, tokens: list[int]) -> str:
        """Return llama.cpp's text of `tokens`."""
        return str(post(self.llamacpp, "/detokenize", {"tokens": tokens})["content"])

    def rows(self, before: int, tokens: list[int]) -> Rows:
        """Return texts and logprobs of `tokens` after `before`, as llama.cpp's entries have them.

        A character of several tokens is one entry with its last token's number; it must be whole.
        """
        found: Rows = []
        cut: list[int] = []
        for token, number in zip(tokens, self.direct.scores([before, *tokens]), strict=True):
            cut.append(token)
            text = self.text(cut)
            if "\ufffd" not in text:
                found.append((text, number))
                cut = []
        assert not cut
        return found

    def generated(self, prompt: str, limit: int = 100) -> Rows:
        """Return the rows of the greedy answer to a plain prompt, of `limit` tokens at most.

        A chat's prompt ends in a line's end.
        """
        before = self.tokens(prompt)[-1]
        return self.rows(before, self.direct.greedy(before, limit))

    def scored(self, prompt: str) -> Rows:
        """Return the prompt's own rows after BOS."""
        return self.rows(self.direct.vocabulary.ids["<s>"], self.tokens(prompt))


def post(socket: Path, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object that the server on a unix socket answers to `body`."""
    asked = Client(socket).request(path, 30, json.dumps(body).encode())
    status, answer = asyncio.run(asked)
    found: dict[str, Any] = json.loads(answer)
    assert status == 200, found
    return found


@contextmanager
def serving(model: Path, log: Path) -> Iterator[tuple[str, Path]]:
    """Run the command with an engine of its own, as a user would, until the block ends.

    Yields the proxy's base URL and the socket of the llama.cpp that it started.
    """
    # The engine's socket is private; this says in which folder it is, with a short path.
    with TemporaryDirectory() as folder:
        engine = ("--engine", "llamacpp", "--model", str(model), "--listen", "127.0.0.1:0")
        with running_proxy(engine, log, {"XDG_RUNTIME_DIR": folder}) as proxy:
            sockets = list(Path(folder).glob("wellspoken/*/api.sock"))
            assert len(sockets) == 1, sockets
            yield proxy, sockets[0]


@contextmanager
def running_proxy(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str]
) -> Iterator[str]:
    """Run `wellspoken serve` with these arguments until the block ends; gives its base URL."""
    command = [sys.executable, "-P", "-m", "wellspoken.proxy.cli", "serve", *arguments]
    with ExitStack() as stack:
        said = stack.enter_context(log.open("wb"))
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
        stack.callback(_end, process)
        end = time.monotonic() + SECONDS
        while "\nTry:" not in (banner := log.read_text()):
            assert process.poll() is None and time.monotonic() < end, banner or "it said nothing"
            time.sleep(0.05)
        proxy = re.search(r"listens on (http://[\w.]+:\d+)", banner)
        assert proxy is not None, banner
        yield proxy[1]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(SECONDS)
