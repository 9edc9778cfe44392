"""The house stands as CONTRIBUTING.md says: sizes, circles and names, each with what breaks it.

The floors are contracts of import-linter (pyproject.toml, tests/test_packaging.py).
"""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import pytest

from tests import structure
from wellspoken.adapters.exchange import Exchange
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.records import Results, Routing, Timing
from wellspoken.proxy.upstream.target import TargetSettings

ROOT = Path(__file__).parents[1]

LINES = 420  # of a file; "about 400", because it holds one idea
FUNCTION = 44  # lines of a function without its docstring; "about 40"
FOLDER = 14  # modules of a folder; "about twelve", __init__ aside
FLAT = 4  # files that lie in proxy/ itself, __init__ among them
PARTICIPLES = 0.04  # of the functions' names

SAME_MODULE = {
    "__init__": "Python's",
    "chat": "what a request may be, and the endpoint that takes it",
    "completions": "likewise, and where the store keeps answers",
    "embeddings": "likewise",
    "stored": "likewise",
}
"""Module names that stand more than once, each with its reason."""

SAME_CLASS = {"Backend": "the configuration's, whose name is in the published JSON Schema"}
"""Class names that stand more than once, likewise."""

LONG = {"wellspoken.engine.shim": "one file by itself, since its process may import nothing else"}
"""Files that hold one idea in more lines, likewise."""

RECORDS = {
    "Routing": "routing",
    "Timing": "timing",
    "Results": "results",
    "Target": "target",
    "AnswerResult": "result",
    "Notes": "notes",
}
"""What is known of a request and its answer -> how a variable that holds it is called."""

GIVEN = {"metrics", "routing"}
"""What `Timing` is given when it is made."""

FROZEN = (Call, Exchange, TargetSettings)

SET_TWICE = {
    "Target.lone": "what was seen of one server is forgotten with it",
    "Target.upstream": "an engine's address comes and goes with it",
    "Target.outstanding": "a server is given a request, and loses it",
    "Routing.engine": "likewise",
    "Results.failure": "what a server failed with is forgotten once another has the request",
    "Results.fault": "likewise",
    "Results.stripped": "likewise",
    "Target.doubt": "a look at an engine begins and ends",
    "AnswerResult.id": "of a plain body without events",
    "AnswerResult.usage": "by whoever counts: for one answer, for several made one, for embeddings",
    "AnswerResult.usage_source": "likewise",
    "Notes.changes": "bytes may be other than the backend's without a repair that has a name",
}
"""Fields that two functions set, each with its reason."""


@functools.cache
def product() -> dict[str, structure.Module]:
    """Return the product's modules, which are read once."""
    return structure.modules(ROOT)


def folders(found: dict[str, structure.Module]) -> Counter[str]:
    """Return how many modules each folder has, its __init__ not counted."""
    return Counter(
        module.path.parent.relative_to(ROOT).as_posix()
        for module in found.values()
        if module.path.stem != "__init__"
    )


def test_no_two_modules_import_each_other() -> None:
    assert structure.circles(structure.imports(product())) == []


def test_a_file_holds_one_idea() -> None:
    long = {name: each.lines for name, each in product().items() if each.lines > LINES}
    assert long.keys() == LONG.keys()


def test_a_function_fits_a_screen() -> None:
    long = {
        f"{module}.{node.name}": structure.length(node)
        for module, node in structure.functions(product())
        if structure.length(node) > FUNCTION
    }
    assert long == {}


def test_a_folder_can_be_seen_at_a_glance() -> None:
    assert {name: n for name, n in folders(product()).items() if n > FOLDER} == {}
    assert len(list((ROOT / "proxy").glob("*.py"))) <= FLAT


def test_functions_say_what_they_do() -> None:
    acting = [
        (module, node.name)
        for module, node in structure.functions(product())
        if not structure.is_property(node)
    ]
    told = [f"{module}.{name}" for module, name in acting if structure.is_participle(name)]
    assert len(told) <= PARTICIPLES * len(acting), "\n".join(told)


def test_a_name_stands_once() -> None:
    classes, files = structure.doubles(product())
    assert {name: where for name, where in classes.items() if name not in SAME_CLASS} == {}
    assert {name: where for name, where in files.items() if name not in SAME_MODULE} == {}


def test_every_exception_is_needed() -> None:
    classes, files = structure.doubles(product())
    assert classes.keys() >= SAME_CLASS.keys()
    assert files.keys() >= SAME_MODULE.keys()


def test_a_field_is_set_in_one_place() -> None:
    made = structure.setters(product(), RECORDS)
    several = {
        f"{record}.{field}": sorted(where)
        for record, fields in made.items()
        for field, where in fields.items()
        if len(where) > 1
    }
    assert several.keys() == SET_TWICE.keys(), several
    assert all(frozen.__struct_config__.frozen for frozen in FROZEN)
    for part in (Routing, Timing, Results):  # and none that nobody sets
        assert made[part.__name__].keys() == set(part.__struct_fields__) - GIVEN


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A product of three files in which nothing is wrong."""
    for name in structure.PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "proxy" / "a.py").write_text("from wellspoken.proxy import b\n")
    (tmp_path / "proxy" / "b.py").write_text("from wellspoken.adapters.c import d\n")
    (tmp_path / "adapters" / "c.py").write_text("def d() -> None: ...\n")
    return tmp_path


def test_a_circle_is_found_however_it_is_made(house: Path) -> None:
    assert structure.circles(structure.imports(structure.modules(house))) == []
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {}\n"
    (house / "adapters" / "c.py").write_text(for_types.format("import wellspoken.proxy.a"))
    assert structure.circles(structure.imports(structure.modules(house))) == [
        ["wellspoken.adapters.c", "wellspoken.proxy.a", "wellspoken.proxy.b"]
    ]


def test_an_import_within_a_function_counts(house: Path) -> None:
    (house / "proxy" / "b.py").write_text("def f():\n    import wellspoken.proxy.a\n")
    assert structure.circles(structure.imports(structure.modules(house))) == [
        ["wellspoken.proxy.a", "wellspoken.proxy.b"]
    ]


@pytest.mark.parametrize("name", ["told", "_counted", "sent_fields", "entered_again", "kept"])
def test_a_participle_is_seen(name: str) -> None:
    assert structure.is_participle(name)


@pytest.mark.parametrize(
    "name", ["send", "feed", "need_key", "read", "embed", "is_known", "set_key"]
)
def test_a_verb_is_none(name: str) -> None:
    assert not structure.is_participle(name)


def test_a_length_is_without_the_docstring(house: Path) -> None:
    (house / "proxy" / "b.py").write_text(
        'def f():\n    """One.\n\n    Two.\n    """\n    return 1\n'
    )
    found = dict(structure.functions(structure.modules(house)))
    assert structure.length(found["wellspoken.proxy.b"]) == 2


def test_a_double_is_found(house: Path) -> None:
    (house / "adapters" / "a.py").write_text("class Row: ...\n")
    (house / "proxy" / "b.py").write_text("class Row: ...\n")
    assert structure.doubles(structure.modules(house)) == (
        {"Row": ["wellspoken.adapters.a", "wellspoken.proxy.b"]},
        {
            "__init__": ["wellspoken.adapters", "wellspoken.engine", "wellspoken.proxy"],
            "a": ["wellspoken.adapters.a", "wellspoken.proxy.a"],
        },
    )


def test_a_field_that_is_set_twice_is_found(house: Path) -> None:
    (house / "adapters" / "c.py").write_text(
        "class Row:\n"
        "    def __init__(self): self.a = self.b = 0\n"
        "    def set_a(self): self.a, self.b = 1, 2\n"
        "    async def add(self): self.a += 1\n"
    )
    (house / "proxy" / "b.py").write_text("def f(x):\n    x.y.row.b = 1\n    x.line.b = 1\n")
    assert structure.setters(structure.modules(house), {"Row": "row"}) == {
        "Row": {
            "a": {"wellspoken.adapters.c.Row.set_a", "wellspoken.adapters.c.Row.add"},
            "b": {"wellspoken.adapters.c.Row.set_a", "wellspoken.proxy.b.f"},
        }
    }
