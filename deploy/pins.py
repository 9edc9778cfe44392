"""Print the lines of constraints.txt that an image of the proxy needs.

    python pins.py EXTRA[,EXTRA...]      the proxy's, with these extras
    python pins.py --build               what builds it

pip takes hashes only for requirements that are pinned one by one, and constraints.txt also pins
what tests and development need. It says of each pin for whose sake it is there, so what the proxy
pulls in is found without an index. The lines are printed with their hashes, for `pip install
--require-hashes --no-deps`. Reads pyproject.toml and constraints.txt in the current folder. Exits
where something that the proxy itself needs is not pinned; that all the rest is there, `pip check`
says afterwards.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BUILD = "--build"


@dataclass
class Pin:
    """The requirements of one name with their hashes, and the names of those that need it.

    There are several where it depends on the version of Python which one is pinned.
    """

    texts: list[str] = field(default_factory=list)
    users: set[str] = field(default_factory=set)


def requirements(project: Path, extras: Sequence[str]) -> list[str]:
    """Return what pyproject.toml says that the core and these extras need."""
    document = tomllib.loads(project.read_text())
    if extras == [BUILD]:
        return list(document["build-system"]["requires"])
    declared = document["project"]
    optional = declared["optional-dependencies"]
    for extra in extras:
        if extra not in optional:
            raise SystemExit(f"no extra {extra!r}; there are {', '.join(sorted(optional))}")
    return [*declared["dependencies"], *(each for extra in extras for each in optional[extra])]


def pins(constraints: str) -> dict[str, Pin]:
    """Return each pin by its name, of text as `uv pip compile --annotation-style line` has it."""
    found = defaultdict[str, Pin](Pin)
    for block in re.findall(r"^[\w.-]+==.*(?:\n[ \t].*)*", constraints, re.MULTILINE):
        text, _, users = block.partition("\n    # via ")
        pin = found[name_of(text)]
        pin.texts.append(text)
        pin.users |= set(map(name_of, users.split(", ")))
    return found


def name_of(requirement: str) -> str:
    """Return the normal form (PEP 503) of the name that a requirement begins with."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def closure(names: Iterable[str], pinned: Mapping[str, Pin]) -> set[str]:
    """Return these names and those of all that they pull in."""
    found = set[str]()
    more = set(names)
    while more:
        found |= more
        more = {name for name, pin in pinned.items() if pin.users & more} - found
    return found


def main(arguments: Sequence[str]) -> None:
    extras = [each for each in (arguments[0] if arguments else "").split(",") if each]
    pinned = pins(Path("constraints.txt").read_text())
    names = closure(map(name_of, requirements(Path("pyproject.toml"), extras)), pinned)
    if missing := names - pinned.keys():
        raise SystemExit(f"not in constraints.txt: {', '.join(sorted(missing))}")
    print("\n".join(text for name, pin in pinned.items() if name in names for text in pin.texts))


if __name__ == "__main__":
    main(sys.argv[1:])
