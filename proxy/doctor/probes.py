"""All probes, in the order in which they are run."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from wellspoken.proxy.doctor import probes_chat, probes_other, probes_stream
from wellspoken.proxy.doctor.probe import Probe
from wellspoken.proxy.doctor.responses import response_probes

PROBES: tuple[Probe, ...] = tuple(
    value
    for module in (probes_chat, probes_stream, probes_other, response_probes)
    for value in vars(module).values()  # in the order in which they stand
    if isinstance(value, Probe)
)


def select_probes(only: Sequence[str], skip: Sequence[str]) -> tuple[Probe, ...]:
    """Return the probes with these names, all where none is given, less those to be left out.

    A name that ends in * stands for all that begin so. Raises ValueError for one that is none's.
    """
    wanted = {name for given in only for name in _match_names(given)}
    unwanted = {name for given in skip for name in _match_names(given)}
    found = tuple(
        probe
        for probe in PROBES
        if (not only or probe.name in wanted) and probe.name not in unwanted
    )
    if not found:
        raise ValueError("no probe is left. Take a --skip away.")
    return found


def _match_names(given: str) -> list[str]:
    names = [probe.name for probe in PROBES]
    if given.endswith("*"):
        found = [name for name in names if name.startswith(given[:-1])]
    else:
        found = [name for name in names if name == given]
    if not found:
        near = difflib.get_close_matches(given, names, n=1)
        hint = f"Did you mean {near[0]}?" if near else "wellspoken doctor --list names them."
        raise ValueError(f"no probe is called {given!r}. {hint}")
    return found
