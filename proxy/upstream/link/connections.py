"""A backend's connections: which are open, which are idle, and which may be used again.

A request that is sent while the server closes its connection is lost, and as a rule nobody can tell
whether it was read: a server that dies over a request says FIN too, and one that gives up may say
RST. Then it is not sent twice (RFC 9110 9.2.2, POST is not idempotent). Only a FIN that came while
the server's kernel had acknowledged no byte of the request was sent before any had come, and what
comes behind it is not processed (9112 9.6): such a request goes into a new connection. It can be
seen where a network lies between; on one machine all is acknowledged at once. So what is made sure
is the look before. Some servers say keep-alive and close a connection all the same, a moment after
the answer on it has ended (llama.cpp b7376 and b11549 after streams); behind a busy thread the
moment may be long. It may be so after some answers alone, of one method, streams, errors. Hence,
for each `AnswerKind`:

- Until a server has shown that it keeps connections after it, each such connection but one is
  closed. That one is on trial: it is not used, and is kept if it is there after `TRIAL`.
- A server that ends an idle connection within `TRIAL` of its answer, on trial or not, gets `TRIALS`
  of them before its connections are used again after such an answer.

So a server that keeps connections costs new ones for a second, once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from dataclasses import dataclass

from wellspoken.proxy.upstream.link.wire import AnswerKind, Wire

TRIAL = 1.0  # seconds after an answer; idle connections live longer on every server (gunicorn: 2)
TRIALS = 16  # trials that a server has to pass which has failed one; it may close only at times


@dataclass(slots=True, eq=False)
class _Trials:
    """After one kind of answer: how many a server has to pass yet, and which is under way."""

    owed: int = 1
    wire: Wire | None = None
    judge: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """End the one under way, if there is one."""
        self.wire = None
        if self.judge is not None:
            self.judge.cancel()


class Connections:
    """The connections of one backend. It belongs to the loop's thread; nothing in it awaits.

    `open`: every connection that is made and not lost. `idle`: those that wait for a request, the
    one longest there first. `keep_alive`: seconds for which one may wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, keep_alive: float) -> None:
        self.open: set[Wire] = set()
        self.idle: deque[Wire] = deque()
        self._loop = loop
        self._keep_alive = keep_alive
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self._trials: defaultdict[AnswerKind, _Trials] = defaultdict(_Trials)

    def make(self) -> Wire:
        """Return the protocol of a new connection."""
        return Wire(self._loop, self.open, self.lose)

    def take(self) -> Wire | None:
        """Return an idle connection that is still good: the latest used, the least likely stale."""
        oldest = self._loop.time() - self._keep_alive
        while self.idle:
            wire = self.idle.pop()
            if wire.since > oldest and not self._trials[wire.kind].owed:
                if wire.quiet():
                    return wire
                self._note_end(wire)
            wire.close()
        return None

    def give(self, wire: Wire, kind: AnswerKind) -> None:
        """Take a connection back after an answer of this kind, unless it is to close."""
        if self._closed or wire.should_close or not wire.connected:
            wire.close()
            return
        wire.since = self._loop.time()
        wire.kind = kind
        trials = self._trials[kind]
        if not trials.owed:
            self._keep(wire)
        elif trials.wire is None:
            trials.wire = wire
            trials.judge = self._loop.call_later(TRIAL, self._pass_trial, trials)
        else:
            wire.close()

    def lose(self, wire: Wire, ended_there: bool) -> None:
        """Note that a connection is gone; `ended_there`: not by our doing."""
        if ended_there:
            self._note_end(wire)
        trials = self._trials[wire.kind]
        if wire is trials.wire:
            trials.end()

    def retire(self) -> None:
        """Close what is idle, now and from now on."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for trials in self._trials.values():
            if trials.wire is not None:
                self.idle.append(trials.wire)
                trials.end()
        for wire in self.idle:
            wire.close()
        self.idle.clear()

    def renew(self) -> None:
        """Have no connection that is open now take a further request."""
        for wire in self.open:
            wire.should_close = True
        while self.idle:
            self.idle.pop().close()

    def _note_end(self, wire: Wire) -> None:
        """Have a server's connections tried that ends one so soon after its last answer."""
        if self._loop.time() - wire.since < TRIAL:
            self._trials[wire.kind].owed = TRIALS

    def _pass_trial(self, trials: _Trials) -> None:
        wire = trials.wire
        assert wire is not None
        trials.end()
        trials.owed -= 1
        self._keep(wire)

    def _keep(self, wire: Wire) -> None:
        self.idle.append(wire)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._keep_alive, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle for long."""
        self._sweeper = None
        oldest = self._loop.time() - self._keep_alive
        while self.idle and self.idle[0].since <= oldest + 0.001:
            self.idle.popleft().close()
        if self.idle:
            again = max(self.idle[0].since - oldest, 0.001)
            self._sweeper = self._loop.call_later(again, self._sweep)
