"""What a repair may know and change beside its fragment."""

from __future__ import annotations

from wellspoken.adapters.exchange import Exchange, Notes


class Context:
    """The exchange, its notes, and what was learned of the answer so far.

    `probabilities`: the answer holds probabilities where logprobs belong (contract rule 7).
    """

    __slots__ = ("exchange", "notes", "probabilities")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.notes: Notes = exchange.notes
        self.probabilities = False

    def note(self, name: str) -> None:
        """Count the repair `name`."""
        self.notes.add(name)
