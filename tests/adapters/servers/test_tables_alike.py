"""What is tried alike of several servers' tables, which are in the servers' own test modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.sending import GONE, USER, Json, chat, differs, refused, text
from tests.adapters.servers import (
    test_furiosa_table,
    test_llama_cpp_python_table,
    test_lmstudio,
    test_mlx_lm,
)
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.known import furiosa, llama_cpp_python
from wellspoken.adapters.servers.known.lmstudio import LMSTUDIO
from wellspoken.adapters.servers.known.mlx_lm import MLX_LM
from wellspoken.adapters.servers.parameters import Table

Sent = dict[str, tuple[Json, Json]]


@dataclass(frozen=True)
class Server:
    """A server whose every row is tried, with what it is sent whole."""

    backend: Backend
    chat: Table
    completions: Table
    chat_sent: Sent
    chat_refused: dict[str, tuple[Json, str]]
    text_sent: Sent
    text_refused: set[str]


WHOLE = {
    "furiosa": Server(
        furiosa.FURIOSA,
        furiosa.CHAT,
        furiosa.COMPLETIONS,
        test_furiosa_table.CHAT_SENT,
        test_furiosa_table.CHAT_REFUSED,
        test_furiosa_table.TEXT_SENT,
        {*test_furiosa_table.TEXT_REFUSED},
    ),
    "llama-cpp-python": Server(
        llama_cpp_python.LLAMA_CPP_PYTHON,
        llama_cpp_python.CHAT,
        llama_cpp_python.COMPLETIONS,
        test_llama_cpp_python_table.CHAT_SENT,
        test_llama_cpp_python_table.CHAT_REFUSED,
        test_llama_cpp_python_table.TEXT_SENT,
        {*test_llama_cpp_python_table.TEXT_REFUSED},
    ),
}
PARTS = {
    "lmstudio": (LMSTUDIO, test_lmstudio.SENT, test_lmstudio.SAME),
    "mlx-lm": (MLX_LM, test_mlx_lm.SENT, test_mlx_lm.SAME),
}


def rows(backend: Backend, server: str, table: dict[str, tuple[Json, Any]]) -> list[Any]:
    """Return the parameters (backend, fields, expected) of a server's table."""
    return [pytest.param(backend, *row, id=f"{server}-{name}") for name, row in table.items()]


@pytest.mark.parametrize("server", WHOLE.values(), ids=WHOLE.keys())
def test_every_row_is_here(server: Server) -> None:
    assert {*server.chat_sent, *server.chat_refused} == set(server.chat)
    assert {*server.text_sent, *server.text_refused} == set(server.completions)


@pytest.mark.parametrize(
    ("backend", "fields", "expected"),
    [row for name, its in WHOLE.items() for row in rows(its.backend, name, its.chat_sent)],
)
def test_what_a_chat_is_sent(backend: Backend, fields: Json, expected: Json) -> None:
    assert chat(backend, **fields) == {"model": "m", "messages": [USER], **expected}


@pytest.mark.parametrize(
    ("backend", "fields", "param"),
    [row for name, its in WHOLE.items() for row in rows(its.backend, name, its.chat_refused)],
)
def test_what_a_chat_is_refused(backend: Backend, fields: Json, param: str) -> None:
    assert refused(backend, chat, **fields) == param


@pytest.mark.parametrize(
    ("backend", "fields", "expected"),
    [row for name, its in WHOLE.items() for row in rows(its.backend, name, its.text_sent)],
)
def test_what_a_completion_is_sent(backend: Backend, fields: Json, expected: Json) -> None:
    base = {"model": "m", "prompt": "Say", "max_tokens": 3}
    assert text(backend, **fields) == base | expected


@pytest.mark.parametrize(
    ("backend", "fields", "expected"),
    [row for name, (backend, sent, _) in PARTS.items() for row in rows(backend, name, sent)],
)
def test_what_is_sent(backend: Backend, fields: Json, expected: Json) -> None:
    assert differs(chat(backend, **fields), expected) == []


@pytest.mark.parametrize(
    ("backend", "same"),
    [pytest.param(backend, same, id=name) for name, (backend, _, same) in PARTS.items()],
)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "y"}, "suffix"),
        ({"prompt": [1, 2]}, "prompt"),
    ],
)
def test_completions(backend: Backend, same: Json, fields: Json, param: str) -> None:
    assert refused(backend, text, **fields) == param
    assert differs(text(backend, **same, echo=True), {**same, "echo": GONE}) == []
