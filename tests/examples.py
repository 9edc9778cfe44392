"""How many examples a property gets: few and the same in a check, many new ones by `make fuzz`.

`FUZZ_EXAMPLES` in the environment is how many it gets at least.
"""

from __future__ import annotations

import os

from hypothesis import settings

_FUZZ = os.environ.get("FUZZ_EXAMPLES")
_SHARE = 4


def examples(number: int) -> int:
    """Return the `max_examples` of a property that is worth so many where time does not matter."""
    return max(number, int(_FUZZ)) if _FUZZ else max(number // _SHARE, 10)


def load_profile() -> None:
    """Set what holds for every property; no deadline, since other work on the machine takes time.

    Without FUZZ_EXAMPLES the examples are the same each time, so that a change alone can make a
    property fail.
    """
    settings.register_profile(
        "ours", derandomize=_FUZZ is None, deadline=None, max_examples=examples(100)
    )
    settings.load_profile("ours")
