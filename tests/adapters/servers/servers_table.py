"""Writes the section `## Servers` of adapters/README.md from the backends and the fixtures.

    python -m tests.adapters.servers.servers_table

A fixture belongs to the backend that its folder is named after, or whose name the folder's goes on
after a hyphen; one under `native` to the backend "<name>-native" where there is one. In the folder
`constructed` the file's own name tells. What belongs to no backend is of a server that the general
repairs alone serve.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.corpus import FIXTURES
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.registry import BACKENDS

README = Path(__file__).parents[3] / "adapters" / "README.md"
BEGIN = "<!-- made by python -m tests.adapters.servers.servers_table -->"
END = "<!-- end of what is made -->"
KINDS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
    "native": "a native endpoint",
}

# Servers without a backend of their own: fixtures folder -> name, as their provenance spells it.
OTHERS = {
    "deepseek": "DeepSeek API",
    "fastchat": "FastChat",
    "koboldcpp": "KoboldCpp",
    "lmdeploy": "LMDeploy",
    "localai": "LocalAI",
    "mistralrs": "mistral.rs",
    "mlc-llm": "MLC-LLM",
    "openllm": "OpenLLM",
    "tabbyapi": "TabbyAPI",
    "tei": "huggingface/text-embeddings-inference",
    "textgen-webui": "text-generation-webui",
    "together": "Together",
    "trtllm": "TensorRT-LLM trtllm-serve / NIM",
    "constructed": "others, and shapes that only the contract tells of",
}
MIXED = "constructed"

_SOURCE = re.compile(r"(captured|constructed) (?:from|after) (.*?)(?:: |$)")
INTRODUCTION = f"""\
{BEGIN}

One row for each adapter. Repairs are those that the server's fixtures need, so that each of them is
shown by bytes; proof says how many of these were captured from the server and how many constructed
after a source. `llamacpp-native` speaks to llama.cpp's own endpoint. The endpoints are the
server's; its `/v1/responses` is asked with `responses = "pass"` alone.
"""
GENERAL = """
Through the general repairs, since these look at an answer's shape and not at who sent it:
"""


@dataclass(frozen=True)
class Shown:
    """What one fixture shows: of which server, at which kind of endpoint, by what proof.

    `own`: it stands in the server's own folder, so its provenance begins with name and versions.
    """

    kind: str
    server: str
    provenance: str
    repairs: frozenset[str]
    own: bool = True

    @property
    def owner(self) -> str | None:
        """The name of the backend that it belongs to."""
        wanted = f"{self.server}-native" if self.kind == "native" else self.server
        return _named(wanted, BACKENDS)

    @property
    def source(self) -> tuple[str, str]:
        """Whether it was captured or constructed, and from what; ValueError if it does not say."""
        found = _SOURCE.match(self.provenance)
        if found is None:
            raise ValueError(f"no provenance: {self.provenance!r}")
        return found[1], found[2]


def _named(wanted: str, names: Iterable[str]) -> str | None:
    found = [name for name in names if wanted == name or wanted.startswith(f"{name}-")]
    return max(found, key=len, default=None)


def shown(root: Path = FIXTURES) -> list[Shown]:
    """Return what all fixtures show, by kind, folder and name."""
    found = []
    for kind in KINDS:
        for index in sorted((root / kind).glob("*/index.json")):
            entries: dict[str, Any] = json.loads(index.read_text())
            expected = json.loads((index.parent / "expected.json").read_text())
            for name, entry in entries.items():
                server = index.parent.name
                own = server != MIXED
                if not own:
                    server = _named(Path(name).stem, (*BACKENDS, *OTHERS)) or MIXED
                repairs = frozenset(expected[name]["repairs"])
                found.append(Shown(kind, server, entry["provenance"], repairs, own))
    return found


def section(given: Iterable[Shown]) -> str:
    """Return the section between its marks; raise KeyError for a server without a name."""
    of: dict[str, list[Shown]] = {}
    general: dict[str, list[Shown]] = {}
    for one in given:
        group = general if one.owner is None else of
        group.setdefault(one.owner or one.server, []).append(one)
    named = [
        (backend.title, f"`{name}`", backend.versions, _endpoints(backend), *_cells(of.get(name)))
        for name, backend in BACKENDS.items()
    ]
    head = ("server", "adapter", "versions", "endpoints", "repairs", "proof")
    others = [
        (OTHERS[name], _versions(OTHERS[name], group), _asked(group), *_cells(group))
        for name, group in sorted(general.items(), key=_place)
    ]
    rest = ("server", "versions", "endpoints", "repairs", "proof")
    parts = (INTRODUCTION, _table(head, named), GENERAL, _table(rest, others), END)
    return "\n\n".join(part.strip() for part in parts)


def _place(item: tuple[str, list[Shown]]) -> tuple[bool, str]:
    return item[0] == MIXED, OTHERS[item[0]].lower()


def _endpoints(backend: Backend) -> str:
    found = [endpoint.path for endpoint in (backend.chat, backend.completions) if endpoint]
    found += backend.passes
    if backend.native is not None:
        found.append(backend.native)
    return _listed(dict.fromkeys(found))


def _asked(group: list[Shown]) -> str:
    kinds = {one.kind for one in group}
    asked = [at for kind, at in KINDS.items() if kind in kinds]
    return ", ".join(f"`{at}`" if at.startswith("/") else at for at in asked)


def _cells(group: list[Shown] | None) -> tuple[str, str]:
    """Return the cells of repairs and proof."""
    names = sorted({name for one in group or () for name in one.repairs})
    proofs = Counter(one.source[0] for one in group or ())
    told = ", ".join(f"{count} {word}" for word, count in sorted(proofs.items()))
    return _listed(names) or "none", told or "none yet"


def _versions(title: str, group: list[Shown]) -> str:
    """Return the versions that the provenances name, each once and in their order."""
    found = [one.source[1].removeprefix(title).strip() or "all" for one in group if one.own]
    return "; ".join(dict.fromkeys(found)) or "various"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in lines]
    return "\n".join(f"| {' | '.join(row)} |".replace("| --- ", "|---") for row in cells)


def rewritten(text: str, made: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """Return a README with `made` in its section; raise ValueError where the marks are not."""
    before, begin, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise ValueError(f"{README.name} lacks the marks {marks[0]} and {marks[1]}")
    return f"{before}{made}{after}"


def main() -> None:
    """Rewrite the section."""
    README.write_text(rewritten(README.read_text(), section(shown())))


if __name__ == "__main__":
    main()
