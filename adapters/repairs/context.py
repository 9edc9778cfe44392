"""What a repair may know and change beside its fragment."""

from __future__ import annotations

from wellspoken.adapters.exchange import Exchange, Notes


class Context:
    """The exchange, its notes, and what was learned of the answer so far.

    `probabilities`: the answer holds probabilities where logprobs belong (contract rule 7).
    `ids`: entries keep their ids, which tell the answer's tokens where nothing else does; they are
    read for that too where the client asked for no logprobs.
    `text`: the backend's endpoint is the completions one, whose logprobs are arrays.
    """

    __slots__ = ("exchange", "ids", "notes", "probabilities", "text")

    def __init__(self, exchange: Exchange, *, text: bool = False) -> None:
        self.text = text
        self.exchange = exchange
        self.notes: Notes = exchange.notes
        self.probabilities = False
        self.ids = False

    def note(self, name: str) -> None:
        """Count the repair `name`."""
        self.notes.add(name)
