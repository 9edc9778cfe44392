"""Writes the table of endpoints and servers in README.md from the backends.

python -m tests.adapters.servers.endpoints_table
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.adapters.servers.servers_table import rewritten
from tests.documents import ROOT
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.registry import BACKENDS

README: Final = ROOT / "README.md"
MARKS: Final = (
    "<!-- made by python -m tests.adapters.servers.endpoints_table -->",
    "<!-- end of the endpoints -->",
)
COLUMNS: Final = {
    "chat": (),
    "completions": (),
    "embeddings": ("/v1/embeddings",),
    "responses": (),
    "messages": ("/v1/messages",),
    "rerank": ("/v1/rerank", "/rerank"),
    "tokenize": ("/tokenize", "/v1/tokenize", "/extras/tokenize"),
}
"""What a column is called, and the paths of which a server passes one; responses are chats'."""
LEFT_OUT: Final = ("openai", "llamacpp-native")  # no server's own, or the same server's
LAST: Final = "general"
INTRODUCTION: Final = """\
exact: OpenAI's contract, whatever the server sends. passes: byte for byte, as the server has it.
`/v1/models`, the stored completions and [the Responses API](proxy/guides/responses.md) are the
proxy's own: it makes responses out of chats, and `responses = "pass"` passes them.
"""


def section(backends: Iterable[Backend]) -> str:
    """Return the table between its marks."""
    shown = [one for one in backends if one.name not in LEFT_OUT]
    shown.sort(key=lambda one: one.name == LAST)
    lines = [["", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    for one in shown:
        cells = [_cell(one, name, paths) for name, paths in COLUMNS.items()]
        lines.append(["any other" if one.name == LAST else one.title, *cells])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines).replace("| --- ", "|---")
    return "\n\n".join((MARKS[0], INTRODUCTION.strip(), table, MARKS[1]))


def _cell(backend: Backend, name: str, paths: tuple[str, ...]) -> str:
    if not paths:
        has = backend.completions if name == "completions" else backend.chat
        return "exact" if has is not None else ""
    if not set(paths) & set(backend.passes):
        return ""
    return "exact" if name == "embeddings" else "passes"


def main() -> None:
    """Rewrite the table."""
    README.write_text(rewritten(README.read_text(), section(BACKENDS.values()), MARKS))


if __name__ == "__main__":
    main()
