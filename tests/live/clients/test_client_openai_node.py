"""openai-node gets what it expects of /v1/completions; tests/live/test_openai_node.py has the chat.

The package is the one that tests/live/node pins.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.live.clients.serving import Rows, Served, check_rows
from tests.models.tiny import TEXT

HERE = Path(__file__).parent
LOCKED = HERE.parent / "node"
PLAIN, OTHER = "Say this:\n", "hello world"  # as ask.mjs has them
SECONDS = 120


def run(folder: Path, environment: dict[str, str], *argv: str) -> str:
    """Return the command's output. Fails if its exit status is not 0."""
    done = subprocess.run(
        argv,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def said(
    served_bpe: Served,
    environment_as_given: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """What openai-node made of the proxy's answers; fails where node or npm is not installed."""
    folder = tmp_path_factory.mktemp("node")
    for source in (LOCKED / "package.json", LOCKED / "package-lock.json", HERE / "ask.mjs"):
        shutil.copy(source, folder)
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--silent")
    run(folder, environment_as_given, "npm", "ci", *quiet)
    out = run(folder, dict(os.environ), "node", "ask.mjs", f"{served_bpe.proxy}/v1")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def check_scored(choice: dict[str, Any], expected: Rows, start: int) -> None:
    """Raise AssertionError unless the arrays hold these rows, the first at `start`."""
    arrays = choice["logprobs"]
    check_rows([*zip(arrays["tokens"], arrays["token_logprobs"], strict=True)], expected)
    for token, number, top, offset in zip(
        *(arrays[name] for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")),
        strict=True,
    ):
        assert 2 <= len(top) <= 3 and top[token] == number
        assert offset == start
        start += len(token)


def test_a_body_and_its_stream_say_the_same(said: dict[str, Any], served_bpe: Served) -> None:
    body, chunks = said["body"], said["chunks"]
    (choice,) = body["choices"]
    assert (choice["text"], choice["finish_reason"]) == (TEXT, "stop")
    check_scored(choice, served_bpe.generated(PLAIN), len(PLAIN))
    parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(part["text"] for part in parts) == TEXT
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["stop"]
    for name, values in choice["logprobs"].items():
        streamed = [value for part in parts if part["logprobs"] for value in part["logprobs"][name]]
        assert streamed == values
    usages = [chunk["usage"] for chunk in chunks if chunk["usage"]]
    assert [usage["completion_tokens"] for usage in usages] == [10]
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    assert body["id"].startswith("cmpl-") and body["object"] == "text_completion"


def test_choices_of_several_prompts_come_in_order(said: dict[str, Any], served_bpe: Served) -> None:
    other = "".join(text for text, _ in served_bpe.generated(OTHER, 16))
    found = [(choice["index"], choice["text"]) for choice in said["several"]["choices"]]
    assert found == [(0, TEXT), (1, TEXT), (2, other), (3, other)]


def test_echo_begins_with_the_prompt(said: dict[str, Any], served_bpe: Served) -> None:
    (choice,) = said["echoed"]["choices"]
    answer = served_bpe.generated(OTHER, 2)
    assert choice["text"] == OTHER + "".join(text for text, _ in answer)
    arrays = choice["logprobs"]
    assert (arrays["token_logprobs"][0], arrays["top_logprobs"][0]) == (None, None)
    rest = {"logprobs": {name: values[1:] for name, values in arrays.items()}}
    first, *scored = served_bpe.scored(OTHER)
    assert arrays["tokens"][0] == first[0]
    check_scored(rest, [*scored, *answer], len(first[0]))


def test_what_was_not_asked_for_is_null(said: dict[str, Any]) -> None:
    (choice,) = said["unscored"]["choices"]
    assert choice == {
        "text": "Hello world!",
        "index": 0,
        "logprobs": None,
        "finish_reason": "length",
    }


def test_a_chats_logprobs_are_the_models(said: dict[str, Any], served_bpe: Served) -> None:
    entries = said["chat"]["choices"][0]["logprobs"]["content"]
    found = [(entry["token"], entry["logprob"]) for entry in entries]
    check_rows(found, served_bpe.generated(PLAIN))


def test_a_refusal_names_the_parameter(said: dict[str, Any]) -> None:
    assert said["refused"] == {"name": "BadRequestError", "status": 400, "param": "logprobs"}


def test_the_check_sees_offsets_from_nought_and_numbers_of_others(
    said: dict[str, Any], served_bpe: Served
) -> None:
    expected = served_bpe.generated(PLAIN)
    mutants = [copy.deepcopy(said["body"]["choices"][0]) for _ in range(3)]
    arrays = [mutant["logprobs"] for mutant in mutants]
    arrays[0]["text_offset"] = [offset - len(PLAIN) for offset in arrays[0]["text_offset"]]
    arrays[1]["token_logprobs"].reverse()
    arrays[2]["top_logprobs"][1] = {"else": -1.0, "other": -2.0}
    for mutant in mutants:
        with pytest.raises((AssertionError, KeyError)):
            check_scored(mutant, expected, len(PLAIN))
