"""What the README shows is what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.replay import body

README = (Path(__file__).parent.parent / "README.md").read_text()


def block(name: str) -> dict[str, Any]:
    found = re.search(rf"<!-- {name} -->\n```json\n(.*?)\n```", README, re.DOTALL)
    assert found is not None, f"the README has no {name} block"
    shown: dict[str, Any] = json.loads(found[1])
    return shown


def whole(logprobs: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of vLLM 0.3.3 that holds what is shown, which the fixtures have of it."""
    message = {"role": "assistant", "content": " Paris."}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": "stop"}
    head = {"id": "cmpl-7f3c", "object": "chat.completion", "created": 518437, "model": "my-model"}
    usage = {"prompt_tokens": 12, "total_tokens": 14, "completion_tokens": 2}
    return {**head, "choices": [choice], "usage": usage}


def test_the_answer_shown_is_the_one_given() -> None:
    request = {
        "model": "my-model",
        "messages": [{"role": "user", "content": "Capital of France?"}],
        "logprobs": True,
        "top_logprobs": 1,
    }
    sent = json.dumps(whole(block("before"))).encode()
    answer = json.loads(body(request, 200, "application/json", sent).body)
    assert answer["choices"][0]["logprobs"] == block("after")


def test_the_first_screen_has_the_two_commands() -> None:
    """And it is a page, not a book; what it says more is a guide's to say."""
    lines = README.splitlines()
    assert len(lines) <= 130
    first = lines[:24]
    assert any(line.startswith("pip install .") for line in first)
    assert any(line.startswith("wellspoken http://localhost:8000") for line in first)


def test_files_that_are_linked_exist() -> None:
    root = Path(__file__).parent.parent
    linked = re.findall(r"\]\(([^)#:]+)\)", README)
    assert linked
    assert [name for name in linked if not (root / name).exists()] == []
