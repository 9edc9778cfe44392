"""Calls as Python writes them: what is read, and that nothing of it is run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.linear import linear
from wellspoken.adapters.markup.call_json import Unfinished
from wellspoken.adapters.markup.markups import BARE, may_be_bare, read_calls
from wellspoken.adapters.markup.pythonic import DEEPEST, read_pythonic

OFFERED: dict[str, Any] = {"f": {}, "get-time": {}, "a.b": {}}

VALUES: dict[str, Any] = {
    "1": 1,
    "-1.5e3": -1500.0,
    "1_000": 1000,
    ".5": 0.5,
    "+2": 2,
    "True": True,
    "false": False,
    "None": None,
    "null": None,
    "'Bern'": "Bern",
    '"a, b=(c) [d]"': "a, b=(c) [d]",
    "'it\\'s'": "it's",
    r'"\n\t\u00e9\x41\""': '\n\té\x41"',
    r'"C:\dir \d \4"': "C:\\dir \\d \\4",
    "'''a\n\"b\"'''": 'a\n"b"',
    '"""a\n"b" """': 'a\n"b" ',
    '"a" "b"': "ab",
    '"a\n\r\tb"': "a\n\r\tb",
    '""': "",
    "[1, [2], 'x',]": [1, [2], "x"],
    "{'a': {'b': []}, \"c\": None}": {"a": {"b": []}, "c": None},
    "123456789012345678901234567890": 123456789012345678901234567890,
}


@pytest.mark.parametrize("text", VALUES)
def test_a_literal_is_its_value(text: str) -> None:
    ((name, arguments),) = read_pythonic(f"[f(x={text})]", OFFERED)
    assert (name, json.loads(arguments)) == ("f", {"x": VALUES[text]})


@pytest.mark.parametrize("name", OFFERED)
def test_names_of_tools(name: str) -> None:
    assert read_pythonic(f"[ {name} ( ) , {name}(y = 1 , ) , ]", OFFERED) == [
        (name, "{}"),
        (name, '{"y":1}'),
    ]


NONE = [
    "[f(x=__import__('os').system('true'))]",
    "[f(x=g())]",
    "[f(x=y)]",
    "[f(x=1+1)]",
    "[f(x=1)(y=2)]",
    "[f(x=f'{y}')]",
    "[f(x=b'y')]",
    "[f(x=(1, 2))]",
    "[f(x={1: 2})]",
    "[f(x={'a'})]",
    "[f(x=1e999)]",
    "[f(x=007)]",
    "[f(x=1, x=2)]",
    "[f(1)]",
    "[f(**{})]",
    "[f(x=[1 2])]",
    "[f(x=1 y=2)]",
    "[f(x=1) f(x=2)]",
    "[f(x=1)] and so",
    "[f(x=1)",
    "[f]",
    "[f(x=1), h()]",
    "f(x=1",
    "[f(x='\\N{no such}')]",
    "[f(x=" + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1) + ")]",
    "[" * 100_000,
    "[f(x=" + "-" * 100_000 + "1)]",
]


@pytest.mark.parametrize("text", NONE, ids=range(len(NONE)))
def test_what_is_no_call_with_literals_is_none(text: str) -> None:
    assert read_calls(BARE, text, OFFERED) == []


def test_a_text_that_does_not_end_is_unfinished() -> None:
    for text in ("[f(x='a", '[f(x="a', "[f(x='''a''"):
        with pytest.raises(Unfinished):
            read_pythonic(text, OFFERED)


def test_what_may_go_on_to_be_one() -> None:
    names = {"get", "get_time"}
    for text in ("[", " [ ", "[g", "[get", "[get_ti", "[get "):
        assert may_be_bare(text, names) is None
    for text in ("[get(", "[get_time (", "[ get ("):
        assert may_be_bare(text, names) is True
    for text in ("[x", "[get_x", "[get]", "[get,", "[get_time]", "[get get"):
        assert may_be_bare(text, names) is False


@pytest.mark.no_cover
@pytest.mark.parametrize("piece", ["a", "\\\\", "'", "'' ", "[", "1,", "x=1,", "\n"])
def test_reading_takes_linear_time(piece: str) -> None:
    def work(count: int) -> list[tuple[str, str]]:
        found = read_calls(BARE, f"[f(x='{piece * count}', y=[{piece * count}])]", OFFERED)
        return found + read_calls(BARE, f"[f(x=[{piece * count}", OFFERED)

    linear(work, 4_000)
