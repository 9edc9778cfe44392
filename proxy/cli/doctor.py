"""The command `wellspoken doctor`: what a server answers, held against what OpenAI says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from wellspoken.proxy.cli.options import add_options, bare_parser

if TYPE_CHECKING:
    from wellspoken.proxy.doctor.diagnose import DoctorOptions

_HELP: Final = """\
examples:
  wellspoken doctor http://localhost:8000
  wellspoken doctor localhost:8080 --model tiny --markdown > report.md
  wellspoken doctor https://llm.example --key env:LLM_KEY --json
  wellspoken doctor unix:/run/llm/api.sock --only 'stream*' --skip stream-n
  wellspoken doctor --list

Asks a running server some fifty short questions, itself and with the proxy in front, and says of
each: pass (it does as OpenAI says), repaired (the proxy makes it so), fails (the proxy cannot),
skipped (the server lacks it and says so, or it cannot be told). Costs about a thousand tokens.
Exit code: 0, 1 if something fails, 2 if the server cannot be reached, or for wrong usage.
"""
_MORE: Final = "; repeat, or separate by commas; stream* is all that begin so"
_OPTIONS: Final = {
    "[URL]": "the server's address, with or without /v1, or unix:/path",
    "--key, --upstream-key env:NAME": "the key that the server wants: env:NAME or file:PATH, never "
    "the key itself",
    "--model NAME": "what to ask for (default: its first one)",
    "--adapter NAME": "what server it is: auto (default), openai, vllm, ...",
    "--tokenizer NAME_OR_FILE": "the model's tokenizer, for the proxy",
    "--timeout SECONDS": "for one answer (default 30); three in a row without one end it",
    "--only NAME...": f"run this probe{_MORE}",
    "--skip NAME...": f"leave this one out{_MORE}",
    "--list": "name the probes, and end",
}
_FORMS: Final = {
    "--json": "one JSON object on stdout",
    "--markdown": "a Markdown document on stdout",
}


def main(arguments: Sequence[str]) -> int:
    """Run `doctor`, the first argument; return the exit code."""
    options = _parser().parse_args(arguments[1:])
    return _list_probes() if options.list else _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = bare_parser("wellspoken doctor", "wellspoken doctor URL [options]", _HELP)
    add_options(parser, _OPTIONS, {"SECONDS": _parse_seconds})
    parser.set_defaults(timeout=30.0, only=[], skip=[])
    add_options(parser.add_mutually_exclusive_group(), _FORMS)
    return parser


def _parse_seconds(text: str) -> float:
    """Return the seconds that `text` says."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no time. Write seconds, like 30.")
    return found


def _list_probes() -> int:
    from wellspoken.proxy.doctor.probes import PROBES

    left = max(len(probe.name) for probe in PROBES) + 2
    for probe in PROBES:
        print(f"{probe.name.ljust(left)}{probe.contract}")
    return 0


def _split_names(given: Sequence[str]) -> list[str]:
    return [name.strip() for text in given for name in text.split(",") if name.strip()]


def _run(options: argparse.Namespace) -> int:
    from wellspoken.proxy.config.values import ConfigError
    from wellspoken.proxy.doctor.diagnose import DoctorOptions
    from wellspoken.proxy.doctor.probes import select_probes

    if options.url is None:
        return _fail("no URL. Write it like: wellspoken doctor http://localhost:8000")
    try:
        probes = select_probes(_split_names(options.only), _split_names(options.skip))
    except ValueError as error:
        return _fail(str(error))
    chosen = DoctorOptions(
        url=options.url,
        probes=probes,
        adapter=options.adapter,
        key=options.key,
        model=options.model,
        tokenizer=options.tokenizer,
        limit=options.timeout,
    )
    try:
        return _diagnose(chosen, "json" if options.json else "markdown" if options.markdown else "")
    except ConfigError as error:
        return _fail(str(error).removeprefix("backend[0].").removeprefix("backend[0]: "))


def _fail(text: str) -> int:
    print(f"wellspoken: {text}", file=sys.stderr)
    return 2


def _diagnose(chosen: DoctorOptions, form: str) -> int:
    """Run the probes, print what came of them, and return the exit code. Raises ConfigError."""
    import asyncio
    import logging

    from wellspoken.proxy.doctor import printing
    from wellspoken.proxy.doctor.diagnose import diagnose
    from wellspoken.proxy.lifecycle.colour import Colour

    log = logging.getLogger("wellspoken")
    level = log.level
    log.setLevel(logging.ERROR)  # what the proxy would log of the backend, the report says
    progress = printing.ProbeProgress(sys.stderr)
    try:
        report = asyncio.run(diagnose(chosen, progress.draw))
    finally:
        log.setLevel(level)
        progress.clear()
    if form == "json":
        text = printing.as_json(report).decode()
    elif form == "markdown":
        text = printing.as_markdown(report)
    elif report.error:
        return _fail(report.error)
    else:
        text = printing.as_table(
            report, printing.width_of(sys.stdout), colour=Colour.of(sys.stdout).on
        )
    print(text, end="", flush=True)
    return report.code
