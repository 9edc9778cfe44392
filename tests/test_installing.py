"""What the product and its documents tell people to install is there under that name.

Nobody may publish `wellspoken` but its makers, and as long as they have not, whoever takes the name
on an index gets every `pip install wellspoken`. So what is missing is named by itself.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("adapters", "engine", "proxy", "deploy")
KINDS = {".md", ".py", ".toml", ".service", ".conf", ".yaml", ".yml", ".txt", ""}
OPTIONS = r"(?:\s+-{1,2}[\w-]+)*"
QUOTED = r"['\"][^'\"\n]+['\"]"
BARE = r"[\w.][\w.-]*(?:\[[\w,]+\])?"
COMMAND = re.compile(rf"pip3? install{OPTIONS}\s+(?:# )?({QUOTED}(?:\s+(?:# )?{QUOTED})*|{BARE})")
OTHERS = {"openai", "llama-index-llms-openai-like", "vllm", "xllamacpp", "."}
"""What is named without a version: clients, and what somebody has who upgrades it."""


def texts() -> Iterator[tuple[str, str]]:
    """Yield what a user may read, file by file: documents whole, of a program its strings."""
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*") if file.is_file()]
    for file in [*files, *ROOT.glob("*.md"), *ROOT.glob("*.toml")]:
        if file.suffix not in KINDS or "__pycache__" in file.parts or file.name.startswith("."):
            continue
        text = file.read_text()
        if file.suffix == ".py":
            strings = (
                node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)
            )
            text = "\n\n".join(string for string in strings if isinstance(string, str))
        yield str(file.relative_to(ROOT)), text


def named(text: str) -> list[str]:
    """Return what is installed by the commands in a text, without options and quotes."""
    words = [
        word.strip("'\"")
        for command in COMMAND.findall(text)
        for word in re.findall(rf"{QUOTED}|[^\s'\"#]+", command)
    ]
    return [word for word in words if not word.endswith((".txt", ".whl"))]


def real(name: str) -> bool:
    """Say whether a name is one of the project's own requirements, word for word, or known."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    mine = {each for extra in extras.values() for each in extra}
    checkout = re.fullmatch(r"\.\[([\w,]+)\]", name)
    if checkout is not None:
        return set(checkout[1].split(",")) <= extras.keys()
    return name in mine or name in OTHERS


def test_every_name_is_real() -> None:
    found = {where: named(text) for where, text in texts()}
    told = {where: names for where, names in found.items() if names}
    assert {
        "engine/vllm/vllm_kind.py",
        "engine/llamacpp/llamacpp_kind.py",
        "proxy/store/postgres/pool.py",
        "config.example.toml",
        "README.md",
    } <= told.keys()
    wrong = {w: [n for n in names if not real(n)] for w, names in told.items()}
    assert {where: names for where, names in wrong.items() if names} == {}


@pytest.mark.parametrize(
    "command",
    [
        'pip install "wellspoken[vllm]"',
        "pip install wellspoken",
        "pip install --upgrade 'wellspoken[otel]'",
        'pip install "vllm>=0.1"',
        "pip install '.[nothing]'",
        'llama.cpp (pip install\n# "wellspoken[llamacpp]")',
    ],
)
def test_the_test_sees_what_is_not(command: str) -> None:
    assert [real(name) for name in named(f"Then {command}, and go on.")] == [False]
