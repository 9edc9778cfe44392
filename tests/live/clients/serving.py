"""The real command in front of llama.cpp, and what the model's weights say it answers."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.live.clients.direct import Direct

START_SECONDS = 60
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
    """A running proxy and its llama.cpp: base URLs without a final slash, and the model's own sums.

    Both serve the model under the name "tiny".
    """

    proxy: str
    llamacpp: str
    direct: Direct

    def tokens(self, text: str) -> list[int]:
        """Return llama.cpp's token ids of `text`, without BOS."""
        asked = {"content": text, "add_special": False, "parse_special": True}
        return list(post(f"{self.llamacpp}/tokenize", asked)["tokens"])

    def text(self, tokens: list[int]) -> str:
        """Return llama.cpp's text of `tokens`."""
        return str(post(f"{self.llamacpp}/detokenize", {"tokens": tokens})["content"])

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


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object that a local server answers to `body`."""
    asked = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(asked, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


@contextmanager
def serving(model: Path, log: Path) -> Iterator[tuple[str, str]]:
    """Run the command as a user would until the block ends; yield the two base URLs."""
    command = [sys.executable, "-P", "-m", "wellspoken.proxy.cli", "serve"]
    engine = ["--engine", "llamacpp", "--model", str(model), "--listen", "127.0.0.1:0"]
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*command, *engine], stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
        )
    try:
        end = time.monotonic() + START_SECONDS
        while "\nTry:" not in (banner := log.read_text()):
            assert process.poll() is None and time.monotonic() < end, banner or "it said nothing"
            time.sleep(0.05)
        addresses = re.findall(r"(?:listens on|backend engine:) (http://[\w.]+:\d+)", banner)
        assert len(addresses) == 2, banner
        yield addresses[0], addresses[1]
    finally:
        process.terminate()
        process.wait(START_SECONDS)
