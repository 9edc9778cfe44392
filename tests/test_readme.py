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


def test_the_answer_shown_is_the_one_given() -> None:
    request = {
        "model": "my-model",
        "messages": [{"role": "user", "content": "Capital of France?"}],
        "logprobs": True,
        "top_logprobs": 2,
    }
    given = body(request, 200, "application/json", json.dumps(block("before")).encode())
    answer, shown = json.loads(given.body), block("after")
    made = {"id": shown["id"], "created": shown["created"]}
    assert {**answer, **made} == shown
    assert re.fullmatch(r"chatcmpl-\w{8,}", shown["id"])


def test_files_that_are_linked_exist() -> None:
    root = Path(__file__).parent.parent
    linked = re.findall(r"\]\(([^)#:]+)\)", README)
    assert linked
    assert [name for name in linked if not (root / name).exists()] == []
