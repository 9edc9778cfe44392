"""Writes the section `## Parameters` of adapters/README.md from the backends' request tables.

python -m tests.adapters.servers.parameters_table
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.adapters.servers.servers_table import README, rewritten
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, Table
from wellspoken.adapters.servers.registry import BACKENDS

BEGIN = "<!-- made by python -m tests.adapters.servers.parameters_table -->"
END = "<!-- end of the parameters -->"
MARKS = (BEGIN, END)
INTRODUCTION = """\
What becomes of each parameter in front of each server; `GET /v1/capabilities` tells the same of
the models at hand. native: the server does it. emulated: the proxy does it. answered: the proxy
answers for itself. accepted: it changes nothing in the answer, so the server is not sent it.
refused: a 400 that says what to do. A row such as `tool_choice.function` is one value of a
parameter. "native from 0.6.0; emulated": up to then the proxy does it. Numbers lead to the notes
below each table.
"""


def section(backends: Iterable[Backend]) -> str:
    """Return the section between its marks."""
    given = list(backends)
    parts = [BEGIN, INTRODUCTION]
    for path, table_of in (
        ("/v1/chat/completions", _chat),
        ("/v1/completions", _completions),
    ):
        parts += [f"### {path}", _matrix([one for one in given if table_of(one)], table_of)]
    return "\n\n".join(part.strip() for part in (*parts, END))


def _chat(backend: Backend) -> Table:
    return backend.chat_table if backend.chat is not None else {}


def _completions(backend: Backend) -> Table:
    return backend.completion_table if backend.completions is not None else {}


def _matrix(backends: list[Backend], table_of: Callable[[Backend], Table]) -> str:
    """Return one table and its notes, each note once."""
    notes: dict[str, int] = {}
    lines = [["parameter", *(f"`{one.name}`" for one in backends)], ["---"] * (len(backends) + 1)]
    for name in sorted(table_of(backends[0])):
        cells = [_cell(table_of(one)[name], notes) for one in backends]
        lines.append([f"`{name}`", *cells])
    matrix = "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- ", "|---")
    return f"{matrix}\n\n" + "\n".join(f"{at}. {note}" for note, at in notes.items())


def _cell(row: Support, notes: dict[str, int]) -> str:
    """Return the word for a row, its other name, the number of its note, and its versions."""
    word = f"`{row.key}`" if row.key else row.how
    if row.note:
        word += f" <sup>{notes.setdefault(row.note, len(notes) + 1)}</sup>"
    if row.since:
        before = _cell(row.older, notes) if row.older is not None else "refused"
        word += f" from {row.since}; {before}"
    return word


def main() -> None:
    """Rewrite the section."""
    README.write_text(rewritten(README.read_text(), section(BACKENDS.values()), MARKS))


if __name__ == "__main__":
    main()
