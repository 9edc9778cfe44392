"""Lengths of time and sizes: as texts in files and variables, for every key that is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as some

from wellspoken.proxy.config import load
from wellspoken.proxy.config.json_schema import schema
from wellspoken.proxy.config.tables import Config, Engine, Health, Limits, Server, Store, Timeouts
from wellspoken.proxy.config.types import hints_of, tables_in
from wellspoken.proxy.config.units import DURATION, SIZE, Unit, seconds, size, unit_of
from wellspoken.proxy.config.values import ConfigError

BACKEND = {"backend": [{"url": "http://localhost:8000"}]}
TIMES = {
    "15m": 900.0,
    "90s": 90.0,
    "1h30m": 5400.0,
    "500ms": 0.5,
    "2d": 172800.0,
    "1.5h": 5400.0,
    " 15M ": 900.0,
    "45": 45.0,
}
NO_TIMES = ["", "15 m", "m", "15x", "-1", "1m1m", "1m-", "nan", "1e3", "\u0661s", "5MB"]
SIZES = {
    "64MB": 64_000_000,
    "64 MB": 64_000_000,
    "64MiB": 1 << 26,
    "64Mi": 1 << 26,
    "64mib": 1 << 26,
    "1.5k": 1500,
    "1GiB": 1 << 30,
    "2T": 2_000_000_000_000,
    "300": 300,
    "300 B": 300,
    "1.001kB": 1001,
    "1125899906842.623k": 1125899906842623,
}
NO_SIZES = [
    "",
    "MB",
    "64 M B",
    "-1",
    "1.5",
    "0.0001k",
    "64iB",
    "1e6",
    "5m2",
    "64PB",
    "\u0661MB",
    "5s",
    "9" * 400,
]


def keys(unit: Unit) -> list[tuple[str, str]]:
    """Return each table and key of a configuration that has this unit."""
    tables = ((name, tables_in(hint)) for name, hint in hints_of(Config).items())
    return [
        (name, key)
        for name, (kind, *_) in ((name, kinds) for name, kinds in tables if kinds)
        for key, hint in hints_of(kind).items()
        if unit_of(hint) is unit
    ]


def read(table: str, key: str, value: Any, environ: dict[str, str] | None = None) -> Any:
    """Return what a configuration has for the key whose file has this value; None: none."""
    engine = {"engine": {"kind": "llamacpp", "model": "m.gguf"}} if table == "engine" else {}
    raw: dict[str, Any] = {**BACKEND, **engine} if table != "engine" else dict(engine)
    if value is not None:
        raw[table] = {**raw.get(table, {}), key: value}
    return getattr(getattr(load(None, raw, environ or {}), table), key)


def test_which_keys_are_lengths_of_time_and_sizes() -> None:
    """By their types: floats are times; an int is a size where its table counts bytes."""
    times = set(keys(DURATION))
    for kind in (Server, Timeouts, Engine, Store, Limits, Health):
        table = kind.__name__.lower()
        for key, hint in hints_of(kind).items():
            is_time = get_args(hint)[:1] == (float,) and key not in ("weight", "retries")
            assert ((table, key) in times) == is_time, key
    sizes = {("limits", key) for key in ("header", "body", "body_rate", "memory", "response")}
    sizes |= {("store", key) for key in ("queue", "spool_size", "max_size")}
    assert set(keys(SIZE)) == sizes


@pytest.mark.parametrize(("table", "key"), keys(DURATION))
def test_every_length_of_time_may_be_a_text(table: str, key: str) -> None:
    variable = f"WELLSPOKEN_{'' if table == 'server' else table.upper() + '_'}{key.upper()}"
    for text, length in TIMES.items():
        assert read(table, key, text) == length
        assert read(table, key, None, {variable: text}) == length
    assert read(table, key, 7) == 7.0
    with pytest.raises(ConfigError, match=rf"{table}\.{key}: '5MB' is no length of time\. Write"):
        read(table, key, "5MB")
    with pytest.raises(ConfigError, match=rf"{variable}='5MB': '5MB' is no length of time\. Write"):
        read(table, key, None, {variable: "5MB"})


@pytest.mark.parametrize(("table", "key"), keys(SIZE))
def test_every_size_may_be_a_text(table: str, key: str) -> None:
    variable = f"WELLSPOKEN_{table.upper()}_{key.upper()}"
    for text, count in SIZES.items():
        assert read(table, key, text) == count
        assert read(table, key, None, {variable: text}) == count
    assert read(table, key, 7) == 7
    with pytest.raises(ConfigError, match=rf"{table}\.{key}: '5s' is no size\. Write it like 64MB"):
        read(table, key, "5s")
    with pytest.raises(ConfigError, match=rf"{variable}='5s': '5s' is no size\. Write it like"):
        read(table, key, None, {variable: "5s"})


def test_texts_have_the_bounds_of_numbers() -> None:
    for table, key, text in (
        ("timeouts", "probe", "0s"),
        ("timeouts", "probe", "9" * 400),
        ("limits", "body", "0MB"),
        ("limits", "header", "999999999TB"),
        ("store", "max_size", "1025TiB"),
    ):
        with pytest.raises(ConfigError, match=rf"{table}\.{key}: Expected .*[<>]"):
            read(table, key, text)


@pytest.mark.parametrize("text", NO_TIMES)
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(ValueError, match="Write it like 90s, 15m or 1h30m"):
        seconds(text)


@pytest.mark.parametrize("text", NO_SIZES)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="Write it like 64MB, 512KiB or 1GiB"):
        size(text)


@pytest.mark.parametrize("unit", [DURATION, SIZE])
@given(text=some.text("0123456789. -kmgtibshdKMB", max_size=8))
def test_the_schema_takes_what_is_read(unit: Unit, text: str) -> None:
    """Of what it takes, the pattern cannot say that a unit comes once, nor what a part is."""
    try:
        unit.read(text)
    except ValueError:
        return
    assert re.search(unit.pattern, text)


@pytest.mark.parametrize(
    ("unit", "table", "key", "good", "bad"),
    [
        (DURATION, "timeouts", "connect", list(TIMES), [t for t in NO_TIMES if t != "1m1m"]),
        (SIZE, "limits", "body", list(SIZES), [t for t in NO_SIZES if t not in ("1.5", "0.0001k")]),
    ],
)
def test_the_schema_refuses_what_is_not_read(
    unit: Unit, table: str, key: str, good: list[str], bad: list[str]
) -> None:
    made = schema()
    for text in good:
        jsonschema.validate({table: {key: text}}, made)
    for text in bad:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({table: {key: text}}, made)


def test_a_file_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "w.toml"
    file.write_text(
        '[timeouts]\nconnect = "500ms"\n[limits]\nbody = "64MB"\n'
        '[store]\npath = "x.db"\nmax_age = "90d"\nmax_size = "20GB"\n'
        '[[backend]]\nurl = "http://localhost:8000"\n'
    )
    config = load(file, environ={})
    assert (config.timeouts.connect, config.limits.body) == (0.5, 64_000_000)
    assert (config.store.max_age, config.store.max_size) == (90 * 86400.0, 20_000_000_000)
