"""What is wrong with a configuration: which key, and what to do; where it stands is added later."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from wellspoken.proxy.config.places import Path


class Origin(NamedTuple):
    """Where a value came from: `name` is the flag, the variable or the file.

    `line` and `column`, from 1, are 0 where it is no file, or where no place in it is meant.
    """

    kind: Literal["flag", "variable", "file", "default"]
    name: str = ""
    line: int = 0
    column: int = 0

    def is_named_in(self, text: str) -> bool:
        """Say whether a text names it, as a word: WELLSPOKEN_AUTH is part of longer ones."""
        return re.search(rf"(?<!\w){re.escape(self.name)}(?!\w)", text) is not None

    def as_json(self) -> dict[str, str | int | None]:
        """Return what programs are told of it."""
        place = {"line": self.line or None, "column": self.column or None}
        return {"source": self.kind, "name": self.name or None, **place}

    def __str__(self) -> str:
        if self.line:
            return f"{self.name}:{self.line}:{self.column}"
        return self.name or self.kind


class Problem(NamedTuple):
    """One thing that is wrong.

    `text` names the key and says what to do. `path` is where in the configuration it is, whatever
    gave the value; `at_key`: it is the key itself, not its value. `origin`, where it is known
    already: what has to be corrected.
    """

    path: Path
    text: str
    at_key: bool = False
    origin: Origin | None = None


def path_text(path: Path) -> str:
    """Return a key path as messages write it: backend[0].caps.n."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return "".join(parts).removeprefix(".")


def is_covered(problem: Problem, others: Iterable[Problem]) -> bool:
    """Say whether one of the others is about the same value, what is in it or around it.

    Then this one may be no more than what comes of that.
    """
    here = problem.path
    wrong = [other.path for other in others if other.path and not other.at_key]
    return any(path[: len(here)] == here or here[: len(path)] == path for path in wrong)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the name that `word` probably means, "" if none is near."""
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), names, n=1)
    return names[near[0]] if near else ""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a sentence, with a blank before it: what `word` may mean, or else what there is."""
    names = list(known)
    near = nearest(word, names)
    return f" Did you mean {near}?" if near else f" Known here: {', '.join(sorted(names))}."
