"""What deploy/ has llama.cpp do is in the llama.cpp that the tests run.

xllamacpp holds the same llama.cpp with all of its flags, but not the program that reads them. Its
parser looks whole words up among the flags' names, so these stand in the library as they are.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest

from tests.deploy.manifests import KUBERNETES
from tests.deploy.tools import DEPLOY, Document, documents

COMPOSE = DEPLOY / "compose" / "compose.yaml"
OVERLAY = KUBERNETES / "overlays" / "llamacpp-sidecar" / "deployment.yaml"


@cache
def library() -> bytes:
    """Return the library's bytes."""
    found = importlib.util.find_spec("xllamacpp")
    assert found is not None and found.origin is not None
    (file,) = Path(found.origin).parent.glob("xllamacpp*.so")
    return file.read_bytes()


def unknown(container: Document) -> list[str]:
    """Return the flags and the variables of a container that llama.cpp does not know."""
    words = [*container.get("args", []), *container.get("command", [])]
    flags = [word for word in words if word.startswith("-")]
    names = [*container.get("environment", {}), *(e["name"] for e in container.get("env", []))]
    names.remove("HOME")  # every program's
    return [each for each in (*flags, *names) if f"\0{each}\0".encode() not in library()]


def containers() -> list[Document]:
    (compose,) = documents(COMPOSE.read_text())
    (deployment,) = documents(OVERLAY.read_text())
    (beside,) = deployment["spec"]["template"]["spec"]["containers"]
    return [compose["services"]["llamacpp"], beside]


def test_llamacpp_knows_every_flag_and_variable() -> None:
    for each in containers():
        assert "llama.cpp" in each["image"]
        assert unknown(each) == []


@pytest.mark.parametrize("word", ["--host=127.0.0.1", "--paralel", "-fa=1"])
def test_what_llamacpp_does_not_know_is_found(word: str) -> None:
    for each in containers():
        each["command" if "command" in each else "args"].append(word)
        assert unknown(each) == [word]
