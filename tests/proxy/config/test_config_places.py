"""Where keys and values stand in a TOML file: tomllib, asked about the same text, is the judge."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellspoken.proxy.config import places as config_places
from wellspoken.proxy.config.places import Place, places, position

EXAMPLE = Path(__file__).parents[3] / "config.example.toml"


def paths(value: Any, path: config_places.Path = ()) -> Iterator[tuple[config_places.Path, Any]]:
    """Give every path of a document as tomllib reads it, with its value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for part, each in inner:
        yield (*path, part), each
        if isinstance(each, (dict, list)):
            yield from paths(each, (*path, part))


def wrong(text: str, found: dict[config_places.Path, Place]) -> list[str]:
    """Say what is wrong with the places of a document.

    Each path must be there, and no other. What stands at its value must mean that value by itself,
    and what stands at its key, up to there, that key; a table stands at its name in a header.
    """
    expected = dict(paths(tomllib.loads(text)))
    problems = [f"{path}: missing" for path in expected.keys() - found.keys()]
    problems += [f"{path}: there is none" for path in found.keys() - expected.keys()]
    for path in expected.keys() & found.keys():
        key, value, end = found[path]
        name = path[-1] if isinstance(path[-1], str) else path[-2]
        try:
            if key == value and isinstance(expected[path], (dict, list)) and text[key] not in "[{":
                if tomllib.loads(f"{text[key:end]} = 0") != {name: 0}:
                    problems.append(f"{path}: not its header")
                continue
            if tomllib.loads(f"x = {text[value:end]}")["x"] != expected[path]:
                problems.append(f"{path}: not its value")
            if isinstance(path[-1], str) and tomllib.loads(f"{text[key:value]}0") != {name: 0}:
                problems.append(f"{path}: not its key")
        except tomllib.TOMLDecodeError as error:
            problems.append(f"{path}: {error}")
    return problems


KEYS = st.sampled_from(["a", "b", "c-1", '"d e"', "'f.g'", '"h\\"\\u00e9"', '""', "7", '"=#["'])
BLANKS = st.sampled_from(["", " ", "\t ", "\n", " # a ] comment\n", "\r\n  "])
TEXT = st.text(st.sampled_from("ab \"'\\#[]{}=,.é\U0001f600\n\t"), max_size=6)


def basic(text: str) -> str:
    """Return a basic string of TOML."""
    for char, escape in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\t", "\\t")):
        text = text.replace(char, escape)
    return f'"{text}"'


STRINGS = st.one_of(
    TEXT.map(basic),
    TEXT.map(lambda text: "'" + text.replace("'", "").replace("\n", "") + "'"),
    TEXT.map(lambda text: '"""\n' + text.replace("\\", "\\\\") + '"""'),
    TEXT.map(lambda text: "'''" + text + "'''"),
    st.sampled_from(['"""a""\\""""', '""""x"""""', "''''y'''''", '"""\\\n   b"""', '""', "''"]),
)
SCALARS = STRINGS | st.sampled_from(
    ["1", "-2_000", "0xff", "1.5e-3", "inf", "true", "1979-05-27 07:32:00", "07:32:00.5", "+nan0"]
)


def arrays(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return arrays and inline tables of such values."""
    item = st.tuples(BLANKS, inner, BLANKS).map("".join)
    pair = st.tuples(KEYS, st.sampled_from(["=", " = ", ".z= "]), inner).map("".join)
    return st.one_of(
        st.lists(item, max_size=3).map(lambda items: "[" + ",".join(items) + "]"),
        st.lists(item, min_size=1, max_size=3).map(lambda items: "[" + ",".join(items) + ",\n]"),
        st.lists(pair, max_size=3).map(lambda pairs: "{ " + " , ".join(pairs) + " }"),
    )


VALUES = st.recursive(SCALARS, arrays, max_leaves=6)
NAMES = st.lists(KEYS, min_size=1, max_size=3).flatmap(
    lambda keys: st.sampled_from([".", " . ", "\t."]).map(lambda dot: dot.join(keys))
)
LINES = st.one_of(
    st.tuples(st.sampled_from(["", "  "]), NAMES, st.sampled_from(["=", " =  "]), VALUES).map(
        "".join
    ),
    NAMES.map(lambda names: f"[{names}]"),
    NAMES.map(lambda names: f"[[ {names} ]] # and more"),
    st.sampled_from(["", "# x = 1", "\t"]),
)
ENDS = st.sampled_from(["\n", "\r\n", "  # end\n", "\n\n"])


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Return a document of lines, without those that would make it none."""
    text = ""
    for line in draw(st.lists(LINES, max_size=12)):
        longer = text + line + draw(ENDS)
        try:
            tomllib.loads(longer)
        except tomllib.TOMLDecodeError:
            continue
        text = longer
    return text


@given(documents())
def test_every_key_and_value_is_where_it_is_said_to_be(text: str) -> None:
    assert wrong(text, places(text)) == []
    assert wrong(text.rstrip(), places(text.rstrip())) == []


def test_the_example() -> None:
    text = EXAMPLE.read_text()
    found = places(text)
    assert wrong(text, found) == []
    lines = text.splitlines()
    line, column = position(text, found["backend", 1, "url"].value)
    assert lines[line - 1][column - 1 :].startswith('"http://localhost:8080"')
    assert lines[line - 1].startswith("url")


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (("a",), None),
        (("a", "x"), Place(0, 0, 1)),
        (("b", 0), Place(22, 22, 23)),
        (("b", 0, "c"), Place(27, 31, 32)),
        (("b", 0, "c"), Place(26, 31, 37)),
        (("b", 0, "c", 1), Place(34, 34, 35)),
        (("a", "d e"), Place(1, 12, 13)),
    ],
)
def test_the_judge_rejects(path: config_places.Path, place: Place | None) -> None:
    """Each is one change of a right answer."""
    text = '[a]\n"d e" = 1\nx = 2\n\n[[b]]\nc = [10, 2]\n'
    found = places(text)
    assert wrong(text, found) == []
    if place is None:
        del found[path]
    else:
        found[path] = place
    assert wrong(text, found)


def test_positions_count_characters_from_one() -> None:
    text = "ä = 1\r\n\n  b = 'x'\n"
    assert position(text, 0) == (1, 1)
    assert position(text, text.index("b")) == (3, 3)
    assert position(text, len(text)) == (4, 1)
