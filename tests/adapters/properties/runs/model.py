"""An answer as a model made it, and as a server shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Role = Literal["C", "R", "M", "E", "P"]
"""Content; reasoning before it; markup; end of text or stop string; a part that is never shown."""
Shape = Literal["chat", "completions"]
Form = Literal["body", "aligned", "early", "held", "grouped", "split", "late"]
Octets = list[int] | None | Literal["absent"]


@dataclass(frozen=True)
class Token:
    """One token: its bytes, its number, and the alternatives offered, best first.

    `control`: it is shown as its text whatever the way of the server is. `owned`: its bytes in the
    content. `start`: the byte of the content where those begin.
    """

    data: bytes
    role: Role
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()
    control: bool = False
    owned: bytes = b""
    start: int = 0


@dataclass(frozen=True)
class Shown:
    """A token on the wire.

    `told`: the bytes that the wire tells, None where it does not. `soft`: they may be more, since
    parts of a neighbouring character may be left out of the text. `share`: the bytes of the
    running text that the server counts as this token's.
    """

    name: str
    octets: Octets
    told: bytes | None
    top: tuple[tuple[str, Octets, float], ...] = ()
    share: bytes = b""
    soft: bool = False


@dataclass
class Chunk:
    """One event of a stream: entries by their tokens' places, and what text it brings."""

    entries: list[int]
    text: str = ""
    reasoning: str = ""
    call: dict[str, Any] | None = None


@dataclass(frozen=True)
class Case:
    """An answer, the request for it, and how the server shows it.

    `kinds` says what was drawn, for tables. `arrays`: its logprobs are the completions endpoint's.
    """

    seed: int
    way: str
    shape: Shape
    form: Form
    arrays: bool
    k: int
    tokens: tuple[Token, ...]
    shown: tuple[Shown, ...]
    content: str
    reasoning: str | None
    call: tuple[str, str] | None
    finish: str
    stops: tuple[str, ...]
    prompt: str
    chunks: tuple[Chunk, ...]
    kinds: tuple[str, ...]
    loose: tuple[str, ...]  # small habits of the server, by name

    @property
    def streamed(self) -> bool:
        """Whether the backend streams it."""
        return self.form != "body"

    @property
    def tag(self) -> str:
        """Return what `--only` looks in."""
        return "/".join([self.shape, self.form, self.way, *self.kinds])

    def request(self, *, streamed: bool) -> dict[str, Any]:
        """Return the client's request."""
        found: dict[str, Any] = {"model": "m"}
        if self.shape == "chat":
            found |= {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
            if self.k:
                found["top_logprobs"] = self.k
        else:
            found |= {"prompt": self.prompt, "logprobs": self.k}
        if self.call is not None:
            function = {"name": self.call[0], "parameters": {"type": "object"}}
            found["tools"] = [{"type": "function", "function": function}]
        if self.stops:
            found["stop"] = list(self.stops)
        if self.finish == "length":
            found["max_tokens"] = len(self.tokens)
        return found | ({"stream": True} if streamed else {})
