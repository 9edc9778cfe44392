"""The JSON Schema of a configuration file, for editors and other people's checks."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from wellspoken.proxy.config.durations import PATTERN
from wellspoken.proxy.config.engine_keys import DURATIONS
from wellspoken.proxy.config.tables import Config

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return a JSON Schema (draft 2020-12) of the TOML file, made from its types.

    What types cannot say, names that clash and keys that exclude each other, `wellspoken check`
    says.
    """
    made = _without_null(msgspec.json.schema(Config))
    tables = made["$defs"]
    for name in DURATIONS:
        number = tables["Engine"]["properties"][name]
        default = number.pop("default")
        text = {"type": "string", "pattern": f"^{PATTERN}$"}
        tables["Engine"]["properties"][name] = {"anyOf": [number, text], "default": default}
    return {"$schema": DIALECT, "title": "wellspoken.toml", **made}


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
