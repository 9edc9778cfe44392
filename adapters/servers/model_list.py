"""A backend's list of models, whoever the backend is: OpenAI's four keys, and context lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from wellspoken.adapters.repairs.loose_json import parse
from wellspoken.adapters.requests.shapes import Model
from wellspoken.adapters.servers.context_length import lengths_of


class Listed(Struct, frozen=True):
    """What a backend lists: models by id, and context lengths as `read_lengths` returns them.

    `loaded`: those of which it says that they are, as llama.cpp's router does by `status.value`.
    """

    models: Mapping[str, Model] = {}
    lengths: Mapping[str, int] = {}
    loaded: frozenset[str] = frozenset()

    def length(self, name: str) -> int | None:
        """Return the context length of the model that the backend knows as `name`.

        A sole model's is that of every name: such servers answer under any.
        """
        if name in self.lengths:
            return self.lengths[name]
        if len(self.models) == 1:
            name = next(iter(self.models))
        return self.lengths.get(name, self.lengths.get(""))

    def add(self, lengths: Mapping[str, int]) -> Listed:
        """Return it with further lengths; those that it has stay."""
        if not lengths:
            return self
        return Listed(self.models, {**lengths, **self.lengths}, self.loaded)

    @property
    def complete(self) -> bool:
        """Whether it has the length of each model, or of whichever there is."""
        if not self.models:
            return "" in self.lengths
        return all(self.length(name) is not None for name in self.models)


NOTHING_LISTED: Final = Listed()


def read_models(body: bytes) -> Listed:
    """Return the models in a backend's list; none if that is what it holds.

    Servers add keys, leave `created` out or send it as null or text, and llama.cpp lists its models
    a second time in Ollama's form.
    """
    try:
        decoded = parse(body)
    except ValueError:
        return NOTHING_LISTED
    items = decoded.get("data") if isinstance(decoded, dict) else decoded
    found: dict[str, Model] = {}
    loaded: set[str] = set()
    for item in items if isinstance(items, list) else ():
        name = item.get("id") if isinstance(item, dict) else None
        if isinstance(name, str) and name:
            owner = item.get("owned_by")
            found[name] = Model(
                id=name,
                created=_epoch(item.get("created")),
                owned_by=owner if isinstance(owner, str) and owner else "backend",
            )
            status = item.get("status")
            if isinstance(status, dict) and status.get("value") == "loaded":
                loaded.add(name)
    return Listed(found, lengths_of(decoded), frozenset(loaded)) if found else NOTHING_LISTED


def holds_list(body: bytes) -> bool:
    """Say whether a body holds a list of models, if an empty one; some send a bare array."""
    try:
        decoded = parse(body)
    except ValueError:
        return False
    return isinstance(decoded, list) or (isinstance(decoded, dict) and "data" in decoded)


def _epoch(value: Any) -> int:
    """Return epoch seconds; 0 for what is no time, such as LiteLLM's null or Ollama's text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11:
        return int(value)
    return 0
