"""A probe, its requests and responses, and what is said about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["pass", "repaired", "fails", "skipped"]
"""Both sides conform; the proxy's alone; not even the proxy's; it could not be told."""

OUTCOMES: tuple[Outcome, ...] = ("pass", "repaired", "fails", "skipped")
SHOWN = 4  # problems that are told of one answer
QUOTED = 60  # characters of a value
PREVIOUS = "id-of-the-answer-before"


class Wrong(Exception):
    """The answer breaks the contract so that nothing more can be said of it."""


class Lacks(Exception):
    """The answer refuses, properly, what this server cannot do."""


class Unclear(Exception):
    """Nothing can be told: of the answer, or because the request would make no sense."""


@dataclass(frozen=True)
class ProbeRequest:
    """A request. Equal ones are sent once; `nth` tells apart what has to be sent again.

    `leave`: close the connection when the first piece of the answer has come. `follows`: the
    request that is sent before it, the id of whose answer stands in the place of PREVIOUS.
    """

    path: str
    body: bytes = b""
    method: str = "POST"
    leave: bool = False
    nth: int = 0
    follows: ProbeRequest | None = None


@dataclass(frozen=True)
class ProbeResponse:
    """A response: header names in lower case; `failure` says why there is none, or not all of it.

    `status` is 0 where no head came. `late`: it took too long. `unsent`: the request was not sent,
    and `failure` says why.
    """

    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    failure: str = ""
    late: bool = False
    unsent: bool = False

    @property
    def content_type(self) -> str:
        """The media type alone, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(frozen=True)
class ProbeContext:
    """What requests and judges know: the model, the time, and the answer to the plain question.

    `listed`: the backend lists that model. `text` is what it answered, "" where it said nothing.
    """

    model: str
    listed: bool = True
    text: str = ""
    now: float = 0.0


Requests = Callable[[ProbeContext], Sequence[ProbeRequest]]
"""Returns the requests of a probe. Raises Unclear where none makes sense."""

Responses = Sequence[ProbeResponse]
Faults = Iterable[str]
Judge = Callable[[Responses, ProbeContext], Faults]
"""Yields what is wrong with the answers, in their order. Raises Wrong, Lacks and Unclear."""


@dataclass(frozen=True)
class Probe:
    """One question about a server: `contract` is what OpenAI says.

    `together`: its requests are sent at the same time, else one after the other.
    """

    name: str
    contract: str
    requests: Requests
    judge: Judge
    together: bool = False


def probe(
    name: str, contract: str, requests: Requests, *, together: bool = False
) -> Callable[[Judge], Probe]:
    """Make a judge the probe of this name."""
    return lambda judge: Probe(name, contract, requests, judge, together)


@dataclass(frozen=True)
class Verdict:
    """What a judge said of one side's answers."""

    state: Literal["ok", "broken", "lacks", "unclear"]
    said: str = ""
    status: int = 0


@dataclass(frozen=True)
class Result:
    """What came of a probe; `repairs` are the names of what the proxy repaired."""

    probe: Probe
    backend: Verdict
    proxy: Verdict
    repairs: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """A server that lacks something and says so has not broken the contract."""
        if self.proxy.state == "broken":
            return "fails"
        if self.proxy.state != "ok" or self.backend.state == "unclear":
            return "skipped"
        return "pass" if self.backend.state == "ok" else "repaired"


@dataclass(frozen=True)
class Report:
    """An examination; `backend` is what the proxy takes it for, `error` why there was none.

    `name`: what a configuration calls the server, "" where only its URL was given.
    """

    url: str
    version: str
    model: str = ""
    backend: str = ""
    results: tuple[Result, ...] = ()
    seconds: float = 0.0
    error: str = ""
    notes: tuple[str, ...] = ()
    name: str = ""

    @property
    def title(self) -> str:
        """Which server it is, for people."""
        return f"{self.name}, {self.url}" if self.name else self.url

    def count(self, outcome: Outcome) -> int:
        """Return how many probes came out so."""
        return sum(result.outcome == outcome for result in self.results)

    @property
    def code(self) -> int:
        """The command's exit code."""
        return 2 if self.error else int(self.count("fails") > 0)


def judge(probe: Probe, responses: Responses, context: ProbeContext) -> Verdict:
    """Return what the probe's judge says of one side's answers."""
    status = responses[-1].status if responses else 0
    for one in responses:
        if one.unsent:
            return Verdict("unclear", one.failure)
    try:
        found = list(dict.fromkeys(map(plain, probe.judge(responses, context))))
    except Wrong as error:
        found = [plain(str(error))]
    except Lacks as error:
        return Verdict("lacks", plain(str(error)), status)
    except Unclear as error:
        return Verdict("unclear", plain(str(error)), status)
    if not found:
        return Verdict("ok", "", status)
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return Verdict("broken", "; ".join([*found[:SHOWN], *more]), status)


def quote(value: Any) -> str:
    """Return a server's value for quoting: one short line without control characters."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = "what is nested too deeply"
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return text if len(text) <= QUOTED else text[: QUOTED - 3] + "..."


def plain(text: str, limit: int = 240) -> str:
    """Return a server's text for a sentence: one line, no control characters, at most `limit`."""
    line = " ".join(text.split())
    line = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."
