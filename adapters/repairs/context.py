"""What a repair may know and change beside its fragment."""

from __future__ import annotations

from wellspoken.adapters.exchange import Exchange, Notes


class Context:
    """The exchange, its notes, and what was learned of the answer so far.

    `probabilities`: the answer holds probabilities where logprobs belong (contract rule 7).
    `text`: the backend's endpoint is the completions one, whose logprobs are arrays.
    """

    __slots__ = ("exchange", "notes", "probabilities", "text")

    def __init__(self, exchange: Exchange, *, text: bool = False) -> None:
        self.text = text
        self.exchange = exchange
        self.notes: Notes = exchange.notes
        self.probabilities = False

    def note(self, name: str) -> None:
        """Count the repair `name`."""
        self.notes.add(name)
