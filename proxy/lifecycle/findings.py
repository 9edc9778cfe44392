"""What `wellspoken check` says: every finding with its place, for people or for programs."""

from __future__ import annotations

import json
import os
from typing import Literal, NamedTuple

from msgspec import UNSET

from wellspoken.proxy.config import Config, ConfigSource, Examined
from wellspoken.proxy.config.layers import Layers, doubtful_variables
from wellspoken.proxy.config.problems import Origin, Problem, is_covered, path_text
from wellspoken.proxy.config.rules.backend_rules import doubtful_urls
from wellspoken.proxy.config.rules.pool_rules import doubtful_pools
from wellspoken.proxy.config.tables import Backend
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.terminal.colour import Colour


class Finding(NamedTuple):
    """A problem, where it has to be corrected, and how bad it is: only an error is a failure."""

    severity: Literal["error", "warning"]
    problem: Problem
    origin: Origin


def findings(examined: Examined, *, outside: bool, servers: bool = False) -> list[Finding]:
    """Return all there is to say of a configuration, in the order of the file's lines.

    `outside`: also of what it names, keys, tokenizers, models, the database and the port. Of what
    is wrong already nothing is said a second time. `servers`: those of one model are asked, too,
    whether they fit each other, unless something is wrong.
    """
    errors, warnings = list(examined.problems), list(doubtful_variables(os.environ))
    if examined.layers.readable:
        from wellspoken.proxy.lifecycle.outside import doubts, misnamed, missing

        known, config = list(errors), examined.config
        found = [*misnamed(config), *(missing(config) if outside else ())]
        errors += [each for each in found if not is_covered(each, known)]
        if not any(problem.path[:1] == ("backend",) for problem in known):
            warnings += (*doubtful_urls(config.backend), *doubtful_pools(config))
    if outside and examined.layers.readable:
        warnings += [each for each in doubts(examined.config) if not is_covered(each, known)]
    if servers and not errors:
        from wellspoken.proxy.lifecycle.survey import survey

        warnings += survey(examined.config)
    listed = [
        Finding("error" if at < len(errors) else "warning", problem, examined.origin(problem))
        for at, problem in enumerate([*errors, *warnings])
    ]
    return sorted(listed, key=lambda found: (not found.origin.line, *found.origin[2:]))


def describe_errors(examined: Examined) -> list[str]:
    """Return a line for everything that keeps the proxy from starting."""
    found = [each for each in findings(examined, outside=True) if each.severity == "error"]
    return [examined.describe(each.problem) for each in found]


def why_unusable(config: Config, source: ConfigSource | None, error: ConfigError) -> list[str]:
    """Return everything that keeps the proxy from starting, of which `error` came first.

    It asks for keys, tokenizers and models once more. Without a `source`, as in a worker, no places
    are known.
    """
    if source is None:
        examined = Examined(config, [], Layers(None, {}, {}))
    else:
        try:
            examined = source.examine()
        except ConfigError:  # the file has gone since
            return [str(error)]
    lines = describe_errors(examined)
    _, _, end = str(error).rstrip(".").rpartition(": ")  # before it stands how the key is named
    if not any(end in line for line in lines):
        lines.insert(0, str(error))
    if source is not None and source.advice:
        lines.append(source.advice)
    return lines


def in_words(examined: Examined, found: list[Finding], colour: Colour) -> str:
    """Return a line for each finding, FILE:LINE:COLUMN first, and one that sums them up."""
    lines = []
    for severity, problem, origin in found:
        kind = colour.put("red" if severity == "error" else "yellow", f"{severity}:")
        named = origin.kind == "default" or (origin.is_named_in(problem.text) and not origin.line)
        where = "" if named else colour.put("bold", f"{origin}: ")
        lines.append(f"{where}{kind} {problem.text}")
    errors = sum(finding.severity == "error" for finding in found)
    name = examined.layers.file or "flags and variables"
    counts = [_count(errors, "error"), _count(len(found) - errors, "warning")]
    summed = ", ".join(count for count in counts if count)
    if errors:
        return "\n".join([*lines, f"{name}: {summed}."])
    good = colour.put("green", f"{name}: good{f', {summed}' if summed else ''}.")
    return "\n".join([*lines, f"{good} {_meaning(examined)}"])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number > 1 else ''}" if number else ""


def _meaning(examined: Examined) -> str:
    """Return what would be served, in a sentence."""
    config = examined.config
    names = [f"{backend.name} ({_places_of(backend)})" for backend in config.backend[:4]]
    if config.engine is not UNSET:
        names.append(f"{config.engine.name} ({config.engine.kind}, {config.engine.model})")
    if len(config.backend) > 4:
        names.append(f"{len(config.backend) - 4} more")
    return f"It listens on {config.server.listen}, in front of {', '.join(names)}."


def _places_of(backend: Backend) -> str:
    first, *more = backend.urls
    return f"{first} and {len(more)} more" if more else first


def in_json(examined: Examined, found: list[Finding]) -> str:
    """Return the findings as one JSON object, `ok` and `findings`."""
    file = examined.layers.file
    listed = [
        {
            "severity": severity,
            "key": path_text(problem.path) or None,
            "message": problem.text,
            **origin.as_json(),
        }
        for severity, problem, origin in found
    ]
    good = all(finding.severity != "error" for finding in found)
    shape = {"ok": good, "file": str(file) if file is not None else None, "findings": listed}
    return json.dumps(shape, indent=1, ensure_ascii=False)
