"""LangChain gets each text, number, call, reason and count once, streamed and not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.live.clients.serving import Served, check_rows
from tests.models.tiny import TEXT

HERE = Path(__file__).parent
PLAIN, OTHER = "Say this:\n", "hello world"  # as ask_langchain.py has them


@pytest.fixture(scope="module")
def said(
    served: Served, client: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What LangChain made of the proxy's answers."""
    folder = tmp_path_factory.mktemp("langchain")
    out = client(folder, str(HERE / "ask_langchain.py"), f"{served.proxy}/v1")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def check_message(message: dict[str, Any], served: Served) -> None:
    """Raise AssertionError unless this is the scripted answer, with its numbers, once."""
    assert message["content"] == TEXT
    metadata = message["response_metadata"]
    assert metadata["finish_reason"] == "stop" and metadata["model_name"] == "tiny"
    entries = metadata["logprobs"]["content"]
    check_rows([(entry["token"], entry["logprob"]) for entry in entries], served.generated(PLAIN))
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == TEXT
    for entry in entries:
        numbers = [other["logprob"] for other in entry["top_logprobs"]]
        assert len(numbers) == 2 and numbers == sorted(numbers, reverse=True)
    check_usage(message["usage_metadata"])


def check_usage(usage: dict[str, Any] | None) -> None:
    """Raise AssertionError unless these are one answer's counts."""
    assert usage is not None
    assert usage["output_tokens"] == 10  # nine pieces and the end
    assert usage["input_tokens"] == 14
    assert usage["total_tokens"] == 24


def test_an_answer_has_text_logprobs_reason_and_usage(said: dict[str, Any], served: Served) -> None:
    check_message(said["invoked"], served)
    assert said["plain"]["content"] == TEXT
    assert said["plain"]["response_metadata"]["logprobs"] is None


def test_a_streams_chunks_add_up_to_the_same(said: dict[str, Any], served: Served) -> None:
    check_message(said["streamed"]["whole"], served)
    chunks = said["streamed"]["chunks"]
    assert sum(chunk["usage_metadata"] is not None for chunk in chunks) == 1
    assert sum("finish_reason" in chunk["response_metadata"] for chunk in chunks) == 1
    assert (
        said["streamed"]["whole"]["response_metadata"]["logprobs"]
        == (said["invoked"]["response_metadata"]["logprobs"])
    )


@pytest.mark.parametrize("name", ["called", "called in a stream"])
def test_a_tool_is_called_once(said: dict[str, Any], name: str) -> None:
    message = said[name] if name == "called" else said[name]["whole"]
    assert message["content"] == "" and message["invalid_tool_calls"] == []
    (call,) = message["tool_calls"]
    assert (call["name"], call["args"]) == ("get_time", {"tz": "UTC"})
    assert call["id"]
    assert message["response_metadata"]["finish_reason"] == "tool_calls"


def test_completions_have_arrays_and_usage(said: dict[str, Any], served: Served) -> None:
    for prompt, one in zip((PLAIN, OTHER), said["completed"], strict=True):
        expected = served.generated(prompt, 16)
        assert one["text"] == "".join(text for text, _ in expected)
        arrays = one["generation_info"]["logprobs"]
        check_rows([*zip(arrays["tokens"], arrays["token_logprobs"], strict=True)], expected)
        assert arrays["text_offset"][0] == len(prompt)
        assert one["generation_info"]["finish_reason"] == "stop"
    usage = said["completion usage"]
    assert usage == {"prompt_tokens": 12, "completion_tokens": 18, "total_tokens": 30}
    assert "".join(said["completion chunks"]) == TEXT


def test_the_check_sees_what_is_doubled(said: dict[str, Any], served: Served) -> None:
    doubled = [copy.deepcopy(said["streamed"]["whole"]) for _ in range(3)]
    doubled[0]["response_metadata"]["finish_reason"] = "stopstop"
    doubled[1]["usage_metadata"]["output_tokens"] *= 2
    entries = doubled[2]["response_metadata"]["logprobs"]["content"]
    entries.append(entries[-1])
    for mutant in doubled:
        with pytest.raises(AssertionError):
            check_message(mutant, served)
