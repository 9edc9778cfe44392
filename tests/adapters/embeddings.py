"""The embeddings' fixtures: answers of real servers, or made after them, and what becomes of them.

    python -m tests.adapters.embeddings     write the expected answers anew; look at the difference

tests/fixtures/embeddings/<server>/ has the files that tests/corpus.py describes; the request is the
client's, and what the backend answered to it is read without its content type.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.embeddings import decode_embeddings
from wellspoken.adapters.translate_embeddings import translate_embeddings

ROOT = Path(__file__).parents[1] / "fixtures" / "embeddings"
Json = dict[str, Any]


@dataclass(frozen=True)
class Fixture:
    """One answer, and what the client gets for it: bytes, and status and repairs."""

    server: str
    name: str
    provenance: str
    status: int
    request: Json
    raw: bytes
    expected: bytes
    outcome: Json


@dataclass(frozen=True)
class Replayed:
    """What the translation made: an answer, the repairs, where the usage came from."""

    status: int
    body: bytes
    repairs: dict[str, int]
    usage_source: str

    @property
    def outcome(self) -> Json:
        """Status and repairs, as expected.json has them."""
        return {"status": self.status, "repairs": self.repairs, "usage": self.usage_source}


def fixtures() -> list[Fixture]:
    """Return all fixtures, by server and name."""
    found = []
    for index in sorted(ROOT.glob("*/index.json")):
        outcomes = index.with_name("expected.json")
        known: Json = json.loads(outcomes.read_text()) if outcomes.exists() else {}
        for name, about in json.loads(index.read_text()).items():
            file = index.with_name(name)
            expected = index.with_name(f"{name}.expected")
            found.append(
                Fixture(
                    index.parent.name,
                    name,
                    about["provenance"],
                    about["status"],
                    about["request"],
                    file.read_bytes(),
                    expected.read_bytes() if expected.exists() else b"",
                    known.get(name, {}),
                )
            )
    return found


def replay(status: int, request: Json, raw: bytes) -> Replayed:
    """Translate one answer for the client that sent `request`."""
    wanted = decode_embeddings(json.dumps(request).encode(), bounds="backend")
    exchange = Exchange(model=wanted.model, now=1_700_000_000, new_id=lambda: "0" * 24)
    answer = translate_embeddings(exchange, wanted, status, raw)
    return Replayed(answer.status, answer.body, exchange.notes.counts, exchange.result.usage_source)


def main() -> None:
    """Write what the translation makes of every fixture."""
    outcomes: dict[str, Json] = {}
    for one in fixtures():
        made = replay(one.status, one.request, one.raw)
        (ROOT / one.server / f"{one.name}.expected").write_bytes(made.body)
        outcomes.setdefault(one.server, {})[one.name] = made.outcome
    for server, known in outcomes.items():
        text = json.dumps(dict(sorted(known.items())), indent=1)
        (ROOT / server / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
