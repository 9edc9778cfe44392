"""The states of an engine that is run, and what leads from one to the next.

state     what holds                                         requests
--------  -------------------------------------------------  ----------------------------
stopped   no process: it was unloaded, or has ended          start it, and wait
starting  a process loads, or a pause before the next one    wait; refused the first time
ready     it answers                                         go through
draining  no new requests; the open ones end, then it does   wait for the next start
failed    too many ends: a pause of minutes, or no start     refused
"""

from __future__ import annotations

from typing import Final, Literal

State = Literal["stopped", "starting", "ready", "draining", "failed"]
Event = Literal["wanted", "answers", "ended", "given_up", "closed", "idle", "stop", "gone"]

TABLE: Final[dict[tuple[State, Event], State]] = {
    ("stopped", "wanted"): "starting",  # by start(), by a request, or because it ended unasked
    ("stopped", "stop"): "stopped",
    ("starting", "answers"): "ready",
    ("starting", "ended"): "starting",  # after a pause
    ("starting", "given_up"): "failed",  # too many ends, or one that would come again
    ("starting", "stop"): "draining",
    ("ready", "ended"): "starting",
    ("ready", "given_up"): "failed",
    ("ready", "closed"): "draining",  # it ends by itself, and lets its streams finish
    ("ready", "idle"): "draining",
    ("ready", "stop"): "draining",
    ("draining", "gone"): "stopped",
    ("draining", "given_up"): "failed",
    ("failed", "wanted"): "starting",  # after the pause, or since somebody asks for it now
    ("failed", "stop"): "stopped",
}
