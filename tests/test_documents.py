"""The documents hold together: links, blocks, commands, and the names that they quote."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import tomllib
from argparse import ArgumentParser
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]

from tests.documents import DOCUMENTS, ROOT, Command, blocks, commands
from wellspoken.adapters.requests.caps import Caps
from wellspoken.proxy.cli import serve as cli_serve
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.cli.options import Parser
from wellspoken.proxy.config import tables as config_tables

OTHERS = ("CONTRIBUTING.md", "CHANGELOG.md", "adapters/README.md")
ALL = (*DOCUMENTS, *(ROOT / name for name in OTHERS))
GUIDES = tuple(path for path in DOCUMENTS if path.parent.name == "guides")
ELSEWHERE = {
    "Agents SDK": "conversation_id mcp_servers output_type set_default_openai_api to_input_list",
    "DashScope": "incremental_output",
    "Cline": "read_file",
    "Codex": "env_key model_context_window model_instructions_file wire_api",
    "llama.cpp": "exceed_context_size_error",
    "DSPy": "register_model",
    "HELM": "prod_env model_deployments tokenizer_configs vllm_client",
    "instructor": "create_partial create_with_completion max_retries",
    "Inspect": "inspect_ai num_choices",
    "lm-evaluation-harness": "model_args",
    "LangChain": "base_url api_key extra_body stream_usage",
    "LiteLLM": "api_base hosted_vllm ollama_chat use_chat_completions_api",
    "LlamaIndex": "is_chat_model is_function_calling_model",
    "Continue": "tool_use",
    "SGLang": "launch_server",
    "vLLM": "structured_outputs num_requests_waiting",
}
"""Names in the documents that are neither OpenAI's nor the project's, by whose they are."""

_FENCED = re.compile(r"^```.*?^```$|^<!--.*?-->$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_QUOTED = re.compile(r"`([^`\n]+)`")
_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)+")
_CODE = re.compile(r"\b[45]\d\d `(\w+)`")
_HEADER = re.compile(r"\bx-[a-z]+(?:-[a-z]+)+\b")
_METRIC = re.compile(r"\bwellspoken_[a-z_]+")
_SETTING = re.compile(r"\b(server|timeouts|limits|store|log|traces|caps)\.([a-z_]+)\b")
_VARIABLE = re.compile(r"\bWELLSPOKEN_[A-Z_]+\b")
MISTAKES = frozenset({"server.listn", "WELLSPOKEN_LISTN"})
"""What configuration.md shows as mistakes that are told."""


def prose(text: str) -> str:
    """Return a document without its fenced blocks."""
    return _FENCED.sub("", text)


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    plain = (re.sub(r"[^\w\- ]", "", name.lower()) for name in _HEADING.findall(prose(text)))
    return {name.replace(" ", "-") for name in plain}


def broken(document: Path, text: str) -> list[str]:
    """Return the links of a document that lead nowhere; other machines are not asked."""
    return [link for link in _LINK.findall(prose(text)) if not _leads(document, text, link)]


def _leads(document: Path, text: str, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    if not target.exists():
        return False
    there = target.read_text() if path and anchor else text
    return not anchor or anchor in anchors(there)


@cache
def source() -> str:
    """Return the text of all code and of the OpenAPI document, and the example configuration."""
    files = [
        path
        for package in ("adapters", "engine", "proxy")
        for kind in ("*.py", "*.json")
        for path in (ROOT / package).rglob(kind)
    ]
    return "\n".join(path.read_text() for path in (*files, ROOT / "config.example.toml"))


@cache
def families() -> set[str]:
    """Return the metrics that the code makes, without a counter's _total."""
    made = re.compile(
        r'(?:self\._(?:counter|gauge|histogram)\(\s*"|\{PREFIX\}|"wellspoken_)([a-z_]+)["{]'
    )
    files = [*(ROOT / "proxy" / "metrics").glob("*.py"), *(ROOT / "proxy" / "workers").glob("*.py")]
    return {name for path in files for name in made.findall(path.read_text())}


def repairs() -> set[str]:
    """Return the names in the table of adapters/README.md."""
    text = (ROOT / "adapters" / "README.md").read_text()
    table = text[text.index("\n## Repairs") : text.index("\n## Parameters")]
    return set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def unknown_codes(text: str) -> list[str]:
    """Return the error codes behind a status that the code never gives."""
    return [code for code in _CODE.findall(text) if f'"{code}"' not in source()]


def unknown_headers(text: str) -> list[str]:
    """Return the headers that the code does not know."""
    known = source().lower()
    return [name for name in _HEADER.findall(text) if name not in known]


def unknown_metrics(text: str) -> list[str]:
    """Return the metrics that do not exist; wellspoken_store_ stands for all that begin so."""
    found = (name.removeprefix("wellspoken_") for name in _METRIC.findall(text))
    known = families()
    return [
        name
        for name in found
        if name.removesuffix("_total").removesuffix("_") not in known
        and not (name.endswith("_") and any(each.startswith(name) for each in known))
    ]


def unknown_settings(text: str) -> list[str]:
    """Return the settings, as table.key or as variables, that no table of a configuration has."""
    tables: dict[str, Any] = {
        field.name: field.type for field in msgspec.structs.fields(config_tables.Config)
    }
    keys = {name: _keys(kind) for name, kind in tables.items()}
    keys["caps"] = _keys(Caps)
    found = [f"{table}.{key}" for table, key in _SETTING.findall(text) if key not in keys[table]]
    variables = {f"WELLSPOKEN_{key.upper()}" for key in keys["server"]} | {"WELLSPOKEN_AUTH"}
    for table in ("timeouts", "limits", "store", "log", "traces", "engine", "auth"):
        variables |= {f"WELLSPOKEN_{table}_{key}".upper() for key in keys[table]}
    found += [name for name in _VARIABLE.findall(text) if name not in variables]
    return [name for name in found if name not in MISTAKES]


def _keys(kind: Any) -> set[str]:
    """Return the keys of a table's type, or of those of a union."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return set(kind.__struct_fields__)
    return {key for part in getattr(kind, "__args__", ()) for key in _keys(part)}


def unknown_names(text: str) -> list[str]:
    """Return the names with underscores, in backquotes, that are neither in the code nor ELSEWHERE.

    Of repairs too: that each of the code's is in adapters/README.md is tested beside the adapters.
    """
    theirs = " ".join(ELSEWHERE.values()).split()
    found = (name for quoted in _QUOTED.findall(prose(text)) for name in _NAME.findall(quoted))
    names = (name.removesuffix("_total") for name in found if not name.startswith("wellspoken_"))
    return [
        name
        for name in dict.fromkeys(names)
        if name not in theirs
        if re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", source()) is None
    ]


def test_every_link_and_anchor_leads_somewhere() -> None:
    found = {str(path.relative_to(ROOT)): broken(path, path.read_text()) for path in ALL}
    assert {name: links for name, links in found.items() if links} == {}


@pytest.mark.parametrize("link", ["nothing.md", "README.md#nothing", "#nothing"])
def test_a_broken_link_is_seen(link: str) -> None:
    assert broken(ROOT / "README.md", f"# A title\n[there](#a-title) [x]({link})") == [link]


def test_each_guide_is_reached_from_the_readme() -> None:
    """Over other guides too: the page of clients has theirs."""
    found, new = set[Path](), {ROOT / "README.md"}
    while new:
        found |= new
        links = {(path.parent / link).resolve() for path in new for link in _linked(path)}
        new = (links & set(DOCUMENTS)) - found
    assert len(GUIDES) >= 11
    assert set(DOCUMENTS) - found == set()


def _linked(document: Path) -> list[str]:
    return [link.partition("#")[0] for link in _LINK.findall(document.read_text())]


READERS: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "python": ast.parse,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}


def test_every_block_is_what_it_says() -> None:
    """A block in a language that nothing here reads is not let by."""
    fences = re.compile(r"^```(\w*)$.*?^```$", re.DOTALL | re.MULTILINE)
    used = {name for path in ALL for name in fences.findall(path.read_text())}
    assert used <= {"", "js", "sh", *READERS}
    for language, read in READERS.items():
        for block in blocks(language):
            read(block.text)
    assert blocks("python") and blocks("yaml") and blocks("json")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_every_block_of_javascript_parses(tmp_path: Path) -> None:
    file = tmp_path / "block.mjs"
    for block in blocks("js"):
        file.write_text(block.text)
        subprocess.run(["node", "--check", str(file)], check=True, capture_output=True)
    file.write_text("const = 1;")
    assert subprocess.run(["node", "--check", str(file)], capture_output=True).returncode != 0


class Parsed(Exception):
    """A command's words were understood; nothing of it is done."""


@pytest.fixture
def parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands raise Parsed once their words are understood."""

    def stopping(understood: Callable[..., Any]) -> Callable[..., Any]:
        def stop(*given: Any) -> Any:
            understood(*given)
            raise Parsed

        return stop

    for parser in (ArgumentParser, Parser):
        monkeypatch.setattr(parser, "parse_args", stopping(parser.parse_args))
    monkeypatch.setattr(cli_serve, "start", stopping(lambda *_: 0))


def own() -> list[Command]:
    return [command for command in commands() if command.words[0] == "wellspoken"]


def arguments(command: Command) -> list[str]:
    """Return a command's arguments, without the shell's redirections."""
    words = command.words[1:]
    ends = [at for at, word in enumerate(words) if re.match(r"\d?[<>|]|&", word)]
    return words[: min(ends, default=len(words))]


@pytest.mark.usefixtures("parsing")
@pytest.mark.parametrize("command", own(), ids=str)
def test_every_command_parses(command: Command) -> None:
    with pytest.raises(Parsed):
        main(arguments(command))


@pytest.mark.usefixtures("parsing")
@pytest.mark.parametrize("line", ["serve --confg FILE", "check --jsn", "export --format chats"])
def test_a_command_that_does_not_parse_is_seen(line: str) -> None:
    try:
        code: object = main(line.split())
    except SystemExit as error:
        code = error.code
    assert code == 2


CHECKS: dict[str, Callable[[str], list[str]]] = {
    "codes": unknown_codes,
    "headers": unknown_headers,
    "metrics": unknown_metrics,
    "settings": unknown_settings,
    "names": unknown_names,
}
MUTANTS = {
    "codes": "a 404 `model_not_fund`",
    "headers": "`x-wellspoken-repair-names`",
    "metrics": "`wellspoken_request_total`",
    "settings": "`limits.inflights`, `WELLSPOKEN_LISTENS`",
    "names": "`logprobs_mising` in a header",
}


@pytest.mark.parametrize("what", CHECKS)
def test_what_is_quoted_exists(what: str) -> None:
    found = {str(path.relative_to(ROOT)): CHECKS[what](path.read_text()) for path in DOCUMENTS}
    assert {name: unknown for name, unknown in found.items() if unknown} == {}


@pytest.mark.parametrize("what", CHECKS)
def test_what_does_not_exist_is_seen(what: str) -> None:
    assert CHECKS[what](MUTANTS[what])


def test_what_the_checks_read_is_there() -> None:
    """Each check finds names in troubleshooting.md, so that it does not hold of nothing."""
    text = (ROOT / "proxy" / "guides" / "troubleshooting.md").read_text()
    for found in (_CODE, _HEADER, _METRIC, _SETTING):
        assert found.findall(text)
    quoted = {name for words in _QUOTED.findall(text) for name in _NAME.findall(words)}
    assert quoted & repairs()
