"""Keys that there are not and values of the wrong type: every one of a configuration at once.

msgspec's own conversion says what is wrong with one value and stops; here it is asked key by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, structs

from wellspoken.proxy.config.engine_keys import engine_problems
from wellspoken.proxy.config.places import Path
from wellspoken.proxy.config.problems import Problem, nearest, path_text, suggestion
from wellspoken.proxy.config.tables import REMOVED, AuthClient, Backend, Config, Engine
from wellspoken.proxy.config.units import unit_of

_WRONG: Final = object()
# What stands in for the required value of a table that may come several times, where that is wrong,
# while the rest is looked at.
_STAND_INS: Final[dict[type[Struct], dict[str, Any]]] = {
    Backend: {"url": "http://localhost"},
    AuthClient: {"name": "client"},
}
_HOW: Final = {
    "str": "Put it in quotes.",
    "int": "Write a whole number, without quotes.",
    "float": "Write a number, without quotes.",
    "bool": "Write true or false, without quotes.",
    "array": "Write a list: [...].",
    "object": "Write a table.",
}
"""What to do where msgspec expected a type of this name."""
_FORMS: Final = {
    "affinity": 'Write "none", "prefix" or "header:NAME", like "header:x-session-id".',
    "health_path": 'Write a path, like "/health".',
}
"""What to write for a key of this name, instead of the pattern that its value has to match."""

_BARE_KEY: Final = (
    'auth: without a table it can only be "none". Keys are named in keys = ["env:NAME"] under '
    "[auth], with --key env:NAME, or in WELLSPOKEN_AUTH_KEYS."
)


def convert_all(raw: Mapping[str, Any]) -> tuple[Config, list[Problem]]:
    """Return the configuration that is left without what is wrong, and all of that.

    Lengths of time become seconds, sizes bytes.
    """
    problems: list[Problem] = []
    return msgspec.convert(_struct(dict(raw), Config, (), problems), Config), problems


def hints_of(kind: type[Struct]) -> dict[str, Any]:
    """Return the types of a table's keys, with their bounds."""
    return get_type_hints(kind, include_extras=True)


def tables_in(hint: Any) -> list[type[Struct]]:
    """Return the Structs that a value of this type can be, itself or as items of a list."""
    if isinstance(hint, type) and issubclass(hint, Struct):
        return [hint]
    if get_origin(hint) in (Union, UnionType, tuple, Annotated):
        return [kind for inner in get_args(hint) for kind in tables_in(inner)]
    return []


def _struct(raw: dict[str, Any], kind: type[Struct], path: Path, problems: list[Problem]) -> Any:
    """Return the table without its wrong keys."""
    hints = hints_of(kind)
    for key in raw:
        if key not in hints:
            problems.append(_unknown((*path, key), list(hints)))
    known = {key: value for key, value in raw.items() if key in hints}
    if kind is Engine:
        found = list(engine_problems(known))
        problems += found
        bad = {problem.path[1] for problem in found}
        known = {key: value for key, value in known.items() if key not in bad}
        if not {"kind", "model"} <= known.keys():
            return _WRONG
    clean = {}
    for key, value in known.items():
        if (fits := _value(value, hints[key], (*path, key), problems)) is not _WRONG:
            clean[key] = fits
    for field in structs.fields(kind):
        if field.name not in clean and field.required:
            if field.name not in raw:
                problems.append(_missing((*path, field.name)))
            if kind not in _STAND_INS:
                return _WRONG
            clean = {**_STAND_INS[kind], **clean}
    return clean


def _value(value: Any, hint: Any, path: Path, problems: list[Problem]) -> Any:
    """Return the value if it fits its type, without what is wrong in it; else _WRONG."""
    kinds = tables_in(hint)
    if kinds and isinstance(value, dict) and get_origin(hint) is not tuple:
        return _struct(value, kinds[0], path, problems)
    if kinds and isinstance(value, list) and get_origin(hint) is tuple:
        items = [_value(item, kinds[0], (*path, at), problems) for at, item in enumerate(value)]
        return [_STAND_INS[kinds[0]] if item is _WRONG else item for item in items]
    if get_origin(hint) is tuple and isinstance(value, dict) and kinds:
        text = f"{path_text(path)}: there may be several. Write [[{path[-1]}]], in two brackets."
        problems.append(Problem(path, text, at_key=True))
        # Looked at all the same, so that everything that is wrong is said at once.
        return [_struct(value, kinds[0], path, problems)]
    if kinds and isinstance(value, list) and value and all(isinstance(x, dict) for x in value):
        table = ".".join(part for part in path if isinstance(part, str))
        text = f"{path_text(path)}: there is one alone. Write [{table}], in one bracket."
        problems.append(Problem(path, text, at_key=True))
        return _struct({key: x[key] for x in value for key in x}, kinds[0], path, problems)
    if isinstance(value, str) and (unit := unit_of(hint)) is not None:
        try:
            value = unit.read(value)
        except ValueError as error:
            problems.append(Problem(path, f"{path_text(path)}: {error}"))
            return _WRONG
    if type(value) is date and datetime in get_args(hint):  # a day of TOML's: from when it begins
        value = datetime.combine(value, time(), UTC)
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        problems.append(_wrong_type(error, value, hint, path))
        return _WRONG
    return value


def _missing(path: Path) -> Problem:
    where = path_text(path)
    return Problem(path, f"{where}: it is missing. Add {path[-1]} = ... there.")


def _unknown(path: Path, known: list[str]) -> Problem:
    """Return what is said of a key that its table does not have."""
    if (said := REMOVED.get(tuple(map(str, path)))) is not None:
        return Problem(path, f"{path_text(path)}: {said}", at_key=True)
    key = str(path[-1])
    near = nearest(key, known)
    said = suggestion(key, known)
    if not near and (homes := [home for home, hints in _homes() if key in hints]):
        said = f" It belongs {' or '.join(homes)}."
    return Problem(path, f"{path_text(path)}: unknown key.{said}", at_key=True)


def _homes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Give each table as a file begins it, with the types of its keys."""
    yield "above the first [table]", hints_of(Config)
    for name, hint in hints_of(Config).items():
        for kind in tables_in(hint):
            where = f"under [[{name}]]" if get_origin(hint) is tuple else f"under [{name}]"
            yield where, hints_of(kind)


def _wrong_type(error: msgspec.ValidationError, value: Any, hint: Any, path: Path) -> Problem:
    """Return what is said of a value of the wrong type, or beyond its bounds."""
    if path == ("auth",):  # not repeated: it may be somebody's key
        return Problem(path, _BARE_KEY)
    text, _, place = str(error).partition(" - at `$")
    items = [int(part) for part in place.replace("`", "").strip("[]").split("][") if part.isdigit()]
    path = (*path, *items)
    for at in items:
        value, hint = value[at], get_args(hint)[0] if get_origin(hint) is tuple else None
    expected = text.partition("Expected `")[2].partition("`")[0].split(" ")[0]
    if found := choice(value, hint):
        # Not repeated where it may be somebody's key.
        said = "it" if path[-1] == "auth" else repr(value)
        return Problem(path, f"{path_text(path)}: {said} is none that there is. {found}")
    if "matching regex" in text and path[-1] in _FORMS:
        said = f"{value!r} is none that there is. {_FORMS[str(path[-1])]}"
        return Problem(path, f"{path_text(path)}: {said}")
    how = f" {_HOW[expected]}" if expected in _HOW and "got `" in text else ""
    return Problem(path, f"{path_text(path)}: {text}.{how}")


def choice(value: Any, hint: Any) -> str:
    """Return what to write where a type is a choice of texts, "" where it is none."""
    choices = [text for text in get_args(hint) if isinstance(text, str)]
    if not choices or get_origin(hint) is not Literal:
        return ""
    near = nearest(value, choices) if isinstance(value, str) else ""
    listed = " or ".join(f'"{text}"' for text in choices)
    return f'Did you mean "{near}"?' if near else f"Write {listed}."
