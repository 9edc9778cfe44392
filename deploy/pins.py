"""Print the lines of constraints.txt that an image of the proxy needs.

    python pins.py EXTRA[,EXTRA...]      the proxy's, with these extras
    python pins.py --build               what builds it

pip takes hashes only for requirements that are pinned one by one, and constraints.txt also pins
what tests and development need. So pip is asked what the proxy pulls in at those versions, and
these lines are printed with their hashes, for `pip install --require-hashes --no-deps`. Reads
pyproject.toml and constraints.txt in the current folder. Exits where pip fails, with its words on
stderr, and where something is not pinned.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

BUILD = "--build"


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


def blocks(constraints: str) -> Iterator[tuple[str, str]]:
    """Yield each pinned requirement's line, and the same with its hashes."""
    for block in re.findall(r"^[\w.-]+==.*(?:\n[ \t].*)*", constraints, re.MULTILINE):
        yield block.partition("\\")[0].strip(), block


def name_of(requirement: str) -> str:
    """Return the normal form (PEP 503) of the name that a requirement begins with."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()


def resolved(needed: Sequence[str], versions: Sequence[str]) -> set[str]:
    """Return the names of all that `needed` pulls in at these versions, as pip sees it."""
    with tempfile.TemporaryDirectory() as folder:
        pins, report = Path(folder, "versions.txt"), Path(folder, "report.json")
        pins.write_text("\n".join(versions))
        asked = ["install", "--dry-run", "--ignore-installed", "--quiet", "--only-binary", ":all:"]
        asked += ["--disable-pip-version-check", "--report", str(report), "-c", str(pins)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", *asked, "--", *needed], stdout=sys.stderr
        )
        if done.returncode:
            raise SystemExit(done.returncode)
        items = json.loads(report.read_text())["install"]
    return {name_of(item["metadata"]["name"]) for item in items}


def main(arguments: Sequence[str]) -> None:
    extras = [each for each in (arguments[0] if arguments else "").split(",") if each]
    pinned = list(blocks(Path("constraints.txt").read_text()))
    needed = requirements(Path("pyproject.toml"), extras)
    names = resolved(needed, [line for line, _ in pinned])
    if missing := names - {name_of(line) for line, _ in pinned}:
        raise SystemExit(f"not in constraints.txt: {', '.join(sorted(missing))}")
    print("\n".join(block for line, block in pinned if name_of(line) in names))


if __name__ == "__main__":
    main(sys.argv[1:])
