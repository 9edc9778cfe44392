"""The JSON Schema of a configuration file, for editors and other people's checks."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from wellspoken.proxy.config.tables import Config
from wellspoken.proxy.config.types import hints_of, tables_in
from wellspoken.proxy.config.units import unit_of

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12) of the TOML file, made from its types.

    What types cannot say, names that clash and keys that exclude each other, `wellspoken check`
    says.
    """
    made = _without_null(msgspec.json.schema(Config))
    for hint in hints_of(Config).values():
        for kind in tables_in(hint):
            _add_units(made["$defs"][kind.__name__]["properties"], hints_of(kind))
    return {"$schema": DIALECT, "title": "wellspoken.toml", **made}


def _add_units(properties: dict[str, Any], hints: dict[str, Any]) -> None:
    """Let texts stand for lengths of time and sizes, beside numbers."""
    for name, hint in hints.items():
        if (unit := unit_of(hint)) is not None:
            number = properties[name]
            default = number.pop("default")
            text = {"type": "string", "pattern": unit.pattern}
            properties[name] = {"anyOf": [number, text], "default": default}


def _without_null(part: Any) -> Any:
    """Leave out null, which TOML does not have, and defaults that are whole tables."""
    if isinstance(part, (list, tuple)):  # a default is a tuple
        return [_without_null(each) for each in part]
    if not isinstance(part, dict):
        return part
    if isinstance(part.get("anyOf"), list):
        kinds = [kind for kind in part["anyOf"] if kind != {"type": "null"}]
        rest = {key: value for key, value in part.items() if key != "anyOf"}
        part = {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds}
    kept = {}
    for key, value in part.items():
        if key == "default" and (value is None or isinstance(value, dict)):
            continue
        if key == "description" and isinstance(value, str):
            value = re.sub(r"\s+", " ", value)
        kept[key] = _without_null(value)
    return kept
