"""The hybrid of llama.cpp's pull request #10627: `choices` in front, the native keys beside them.

Builds with OAI_FULL_COMPAT answer so on /completion. The choices are near-OpenAI's and read as
such; of the native keys those count that tell what the choices do not.
"""

from __future__ import annotations

from typing import Any

from wellspoken.adapters.events import Event, Start
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.readers.llamacpp_wire import FLAGS, KEYS
from wellspoken.adapters.readers.opening import Opening
from wellspoken.adapters.readers.pieces import Pieces
from wellspoken.adapters.readers.text import offsets
from wellspoken.adapters.readers.tolerant import Tolerant
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.counts import count
from wellspoken.adapters.repairs.native import hybrid_logprobs

NATIVE = frozenset(
    (
        *("content", "tokens", "id_slot", "slot_id", "index", "stop", "tokens_predicted"),
        *("tokens_evaluated", "tokens_cached", "generation_settings", "prompt", "has_new_line"),
        *("truncated", "stopping_word", "multimodal", "oaicompat_token_ctr", "prompt_progress"),
    )
)
"""The dialect's own keys, which are no client's business."""
_REASONS = frozenset((*FLAGS, "stop_type"))


class Hybrid:
    """The reader of one such answer, a body (`whole`) or a stream; `ended`: it failed.

    `start`: its envelope, if native events told that before.
    """

    def __init__(self, exchange: Exchange, whole: bool, start: Start | None) -> None:
        self.exchange = exchange
        self.whole = whole
        self.start = start
        self.opening: Opening | None = None
        self.native = False

    @property
    def ended(self) -> bool:
        """Whether nothing that follows is read."""
        return self.opening is not None and self.opening.pieces.ended

    def answer(self, payload: dict[str, Any]) -> list[Event]:
        """Return the events of a body or chunk, an object with `choices`."""
        given = payload["choices"]
        choices: list[Any] = given if isinstance(given, list) else [given]
        if self.opening is None:
            text = any(isinstance(x, dict) and "text" in x for x in choices)
            self.opening = Opening(Pieces(Context(self.exchange, text=text)))
            self.opening.start = self.start
            self.opening.pieces.whole = self.whole
        pieces = self.opening.pieces
        if not KEYS.isdisjoint(payload):
            payload = self._pure(payload, choices, pieces)
        Tolerant(self.opening).answer(payload)
        return pieces.take()

    def _pure(self, payload: dict[str, Any], choices: list[Any], pieces: Pieces) -> dict[str, Any]:
        """Return the answer without its native keys, what they tell moved to where it belongs."""
        if not self.native:
            self.native = True
            self.exchange.notes.add("native_answer")
        pure = {key: value for key, value in payload.items() if key not in NATIVE}
        reasons = len(choices) == 1 and isinstance(choices[0], dict)
        if not reasons or choices[0].get("finish_reason") not in (None, ""):
            pure = {key: value for key, value in pure.items() if key not in _REASONS}
        prompt, completion = (count(payload.get(f"tokens_{x}")) for x in ("evaluated", "predicted"))
        told = prompt is not None and completion is not None and payload.get("stop") is not False
        if payload.get("usage") is None and told:
            pure["usage"] = {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": (prompt or 0) + (completion or 0),
            }
        if pure.get("usage") is not None and not self.exchange.keeps("timings"):
            pure.pop("timings", None)
        pure["choices"] = [self._choice(choice, pieces) for choice in choices]
        return pure

    def _choice(self, choice: Any, pieces: Pieces) -> Any:
        given = choice.get("logprobs") if isinstance(choice, dict) else None
        if not isinstance(given, dict):
            return choice
        if pieces.context.text and "text_offset" in given:
            offsets(pieces, 0, given["text_offset"])  # #10627 counts from the answer's start
        return {**choice, "logprobs": hybrid_logprobs(given, pieces.context)}
