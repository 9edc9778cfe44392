"""Whether one of several servers gets requests: in, out for a while, or on trial.

    in     failures in a row, of requests and of looks -> out, for a pause
    out    the pause is over, and a look at it was good where it is looked at -> the next request
           that is given to it puts it on trial; as many good looks as it takes failures -> in; a
           request that it got because all were out succeeds -> in
    trial  that request succeeds -> in; it fails, or a look does -> out, for twice as long; it ends
           otherwise -> out, and the next request is another trial

The pause doubles each time that the server fails again soon after it came back, up to a limit, and
differs by chance, so that several proxies do not come back all at once. A server that has been well
for a multiple of its last pause begins anew.

All of it happens in the loop's thread, in steps that await nothing. What ends for a request that
was given to the server before it was put out says nothing of it now: so each request keeps the
`round` in which it was given, and its end counts in that round alone. The request on trial has a
round of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, Literal

from wellspoken.proxy.config.tables import Health

State = Literal["in", "out", "trial"]

SOON: Final = 5.0
"""So many times its last pause after its return, a failure makes the next one longer."""
JITTER: Final = 0.25
"""By how much of itself a pause differs, at most."""


class Ejection:
    """What is known of one server's health.

    `clock` gives seconds, `chance` a number between 0 and 1. `ejections`: how often it was put out.
    `reason`: why it was, "" while it is in. `round` counts its changes between in, out and trial.
    `watched`: somebody looks at it, as often as the `rules` say. `told` is called with a sentence
    for the log when it goes out and comes back.
    """

    __slots__ = (
        "_chance", "_clock", "_failures", "_looks", "_missed", "_pause", "_returned", "_trial",
        "_well", "ejections", "reason", "round", "rules", "told", "until", "watched",
    )  # fmt: skip

    def __init__(
        self,
        rules: Health,
        clock: Callable[[], float],
        chance: Callable[[], float] = random.random,
        told: Callable[[str], None] = lambda said: None,
    ) -> None:
        self.rules = rules
        self.ejections = 0
        self.reason = ""
        self.round = 0
        self.told = told
        self.watched = False
        self.until = 0.0  # when the pause ends; 0: it is in
        self._clock = clock
        self._chance = chance
        self._failures = 0  # of requests, in a row
        self._missed = 0  # looks that failed, in a row
        self._pause = 0.0  # the last one, without its chance
        self._returned = 0.0  # when it came back from that
        self._looks = 0  # good ones in a row since the pause's end
        self._trial = False  # a request is under way that decides
        self._well = False  # a look since the pause's end was good, and none after it bad

    @property
    def state(self) -> State:
        """Its present state."""
        if not self.until:
            return "in"
        return "trial" if self._trial else "out"

    @property
    def is_open(self) -> bool:
        """Whether it may be given a request now."""
        if not self.until:
            return True
        if self._trial or self._clock() < self.until:
            return False
        # Where nobody looks, the request on trial is the look.
        return self._well or not (self.watched and self.rules.interval)

    @property
    def pause_left(self) -> float:
        """The seconds until its pause ends, 0.0 where it has none."""
        return max(self.until - self._clock(), 0.0)

    def take(self) -> int:
        """Note that it is given a request; return the round, for the request's end."""
        if self._trial:  # it gets this one because all are out; it says nothing of the trial
            return self.round - 1
        if self.until and self.is_open:
            self._trial = True
            self.round += 1
        return self.round

    def leave(self, round_: int) -> None:
        """Note that a request of that round has ended, whatever came of it."""
        if round_ == self.round:
            self._trial = False

    def note_beginning(self, round_: int) -> None:
        """Note that the answer to a request of that round has begun: a long one is not waited for.

        It takes back no failure, since the answer may break off as those before it did.
        """
        if self.until and round_ == self.round:
            self._come_back("a request was answered")

    def note_success(self, round_: int) -> None:
        """Note that it answered a request of that round, to the end."""
        if round_ != self.round:
            return
        self._failures = self._missed = 0
        if self.until:
            self._come_back("a request was answered")

    def note_failure(self, reason: str, round_: int) -> None:
        """Note that a request of that round failed with it; the reason is a label."""
        if round_ == self.round:
            self._failures += 1
            self._judge(reason)

    def note_leaving(self, reason: str) -> None:
        """Note that it takes no requests and says so: it is put out at once."""
        if not self.until:
            self._put_out(reason)

    def note_look(self, reason: str) -> None:
        """Note what a look found: "" for a server that is well.

        That takes back what looks found before, and no failure of a request: a server whose model
        hangs may still say that it is well.
        """
        if reason:
            self._well = False
            self._missed += 1
            self._looks = 0
            self._judge(reason)
            return
        self._missed = 0
        if self.until and not self.pause_left and not self._trial:
            self._well = True
            self._looks += 1
            if self._looks >= self.rules.failures:  # no request came to try it with
                self._come_back("it answers")

    def _judge(self, reason: str) -> None:
        many = self._failures + self._missed >= self.rules.failures
        if self._trial or (not self.until and many):
            self._put_out(reason)

    def _put_out(self, reason: str) -> None:
        now, rules = self._clock(), self.rules
        again = self._pause and (self._trial or now - self._returned < SOON * self._pause)
        longer = max(2 * self._pause if again else 0.0, rules.pause)
        self._pause = min(longer, rules.longest_pause)
        pause = self._pause * (1 + JITTER * (2 * self._chance() - 1))
        self.until = now + pause
        self.reason = reason
        self.ejections += 1
        self.round += 1
        self._failures = self._missed = self._looks = 0
        self._trial = self._well = False
        self.told(f"gets no requests for {pause:.1f} s: {reason}")

    def _come_back(self, why: str) -> None:
        self.until = 0.0
        self.reason = ""
        self.round += 1
        self._failures = self._missed = 0
        self._trial = False
        self._returned = self._clock()
        self.told(f"gets requests again: {why}")


class Visit:
    """What one request says of the health of the server that it was given to.

    A head says little: a server whose model hangs may send that, and one that always breaks off has
    sent it, too. So the answer counts once it has begun, and its end.
    """

    __slots__ = ("_ejection", "_failed", "_good", "_round")

    def __init__(self, ejection: Ejection) -> None:
        self._ejection = ejection
        self._round = ejection.take()
        self._good = False  # a head came that was not the server's refusal
        self._failed = False

    def note_head(self) -> None:
        """Note the head of an answer that speaks for the server, whatever it refused before."""
        self._good, self._failed = True, False

    def note_beginning(self) -> None:
        """Note that of the answer itself something has come."""
        if self._good and not self._failed:
            self._ejection.note_beginning(self._round)

    def note_failure(self, reason: str) -> None:
        """Note that it failed, once for each answer; the reason is a label."""
        if not self._failed:
            self._failed = True
            self._ejection.note_failure(reason, self._round)

    def note_end(self) -> None:
        """Note that the answer has come to its end, unless it failed."""
        if self._good and not self._failed:
            self._ejection.note_success(self._round)

    def leave(self) -> None:
        """Note that the request has left the server, whatever came of it."""
        self._ejection.leave(self._round)
