"""The public table of parameters: made from the request tables, and fresh."""

from __future__ import annotations

import re

import pytest
from msgspec import structs

from tests.adapters.servers.parameters_table import BEGIN, END, MARKS, section
from tests.adapters.servers.servers_table import README, rewritten
from wellspoken.adapters.servers.parameters import Support
from wellspoken.adapters.servers.registry import BACKENDS, find


def test_the_table_is_fresh() -> None:
    text = README.read_text()
    assert text == rewritten(text, section(BACKENDS.values()), MARKS), "run: make tables"


def test_a_changed_row_makes_it_stale() -> None:
    openai = find("openai")
    row = Support("refused", note="Ask another server.")
    changed = structs.replace(openai, chat_table={**openai.chat_table, "seed": row})
    text = section([changed])
    noted = re.search(r"\| `seed` \| refused <sup>(\d+)</sup> \|", text)
    assert noted and f"\n{noted[1]}. Ask another server.\n" in text
    assert text != section([openai])


def test_a_name_of_the_servers_own_is_shown() -> None:
    assert "| `max_completion_tokens` | `max_tokens` |" in section([find("vllm")])


def test_a_backend_without_an_endpoint_is_not_in_its_table() -> None:
    _, _, completions = section(BACKENDS.values()).partition("### /v1/completions")
    assert "`cortex`" not in completions and "`vllm`" in completions


def test_the_marks_have_to_be_there() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        rewritten(f"{END} {BEGIN}", "x", MARKS)


def test_versions_are_told() -> None:
    older = Support("emulated", since="0.2")
    row = Support("native", since="0.3", older=older)
    table = {**find("openai").chat_table, "seed": row}
    text = section([structs.replace(find("openai"), chat_table=table)])
    assert "| `seed` | native from 0.3; emulated from 0.2; refused |" in text
