"""The command `wellspoken doctor`: what a server answers, held against what OpenAI says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from wellspoken.proxy.cli.options import UPSTREAM_TLS, add_options, bare_parser, upstream_tls

if TYPE_CHECKING:
    from wellspoken.proxy.config.values import ConfigError
    from wellspoken.proxy.doctor.configured import ConfiguredServer
    from wellspoken.proxy.doctor.probe import Probe, Report
    from wellspoken.proxy.doctor.reports.comparison import Comparison

_HELP: Final = """\
examples:
  wellspoken doctor http://localhost:8000
  wellspoken doctor localhost:8080 --model tiny --markdown > report.md
  wellspoken doctor https://llm.example --key env:LLM_KEY --json
  wellspoken doctor unix:/run/llm/api.sock --only 'stream*' --skip stream-n
  wellspoken doctor http://gpu1:8000 http://gpu2:8000
  wellspoken doctor --config wellspoken.toml
  wellspoken doctor --compare localhost:8000 localhost:8080
  wellspoken doctor --list

Asks a running server some fifty short questions, itself and with the proxy in
front, and says of each: pass (it does as OpenAI says), repaired (the proxy
makes it so), fails (the proxy cannot), skipped (the server lacks it and says
so, or it cannot be told). Costs about a thousand tokens. Exit code: 0, 1 if
something fails (with --compare: if the results differ), 2 if a server cannot
be examined, or for wrong usage; of several servers the worst.
"""
_MORE: Final = "; repeat, or separate by commas; stream* is all that begin so"
_OPTIONS: Final = {
    "[URL...]": "the server's address, with or without /v1, or unix:/path; several: one after "
    "another",
    "--config FILE": "examine the servers of a configuration, each as its [[backend]] says",
    "--key, --upstream-key env:NAME": "the key that the server wants: env:NAME or file:PATH, never "
    "the key itself",
    "--model NAME": "what to ask for (default: its first one)",
    "--adapter NAME": "what server it is: auto (default), openai, vllm, ...",
    "--tokenizer NAME_OR_FILE": "the model's tokenizer, for the proxy",
    "--timeout TIME": "for one answer, as 2m (default 30s); three in a row without one end it",
    "--only NAME...": f"run this probe{_MORE}",
    "--skip NAME...": f"leave this one out{_MORE}",
    "--list": "name the probes, and end",
    **UPSTREAM_TLS,
}
_COMPARE: Final = (
    "two servers side by side, each a URL, or a .json file that --json wrote; the other options "
    "are for both"
)
_FORMS: Final = {
    "--json": "one JSON object on stdout; a list of them for several URLs and for --config",
    "--markdown": "a Markdown document on stdout",
}


def main(arguments: Sequence[str]) -> int:
    """Run `doctor`, the first argument; return the exit code."""
    options = parser_of("doctor").parse_args(arguments[1:])
    return _list_probes() if options.list else _run(options)


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of `doctor`."""
    parser = bare_parser(f"wellspoken {command}", "wellspoken doctor URL... [options]", _HELP)
    add_options(parser, _OPTIONS, {"TIME": _parse_seconds})
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help=_COMPARE)
    parser.set_defaults(timeout=30.0, only=[], skip=[])
    add_options(parser.add_mutually_exclusive_group(), _FORMS)
    return parser


def _parse_seconds(text: str) -> float:
    """Return the seconds that `text` says."""
    from wellspoken.proxy.config.units import seconds

    try:
        found = seconds(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 3600:
        said = f"{text!r} is no length of time of up to an hour. Write it like 30 or 2m."
        raise argparse.ArgumentTypeError(said)
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
    from wellspoken.proxy.doctor.probes import select_probes

    given = {"--compare": options.compare, "--config": options.config, "the URL": options.url}
    first, *others = [name for name, value in given.items() if value] or [""]
    if not first:
        return _fail("no URL. Write it like: wellspoken doctor http://localhost:8000")
    if others:
        names = "both servers" if first == "--compare" else "the servers"
        return _fail(f"{first} names {names}. Leave {others[0]} out")
    try:
        probes = select_probes(_split_names(options.only), _split_names(options.skip))
        if options.compare:
            return _compare(options, probes)
        return _examine(options, probes)
    except ConfigError as error:
        return _fail(_reword(error))
    except ValueError as error:
        return _fail(str(error))


def _fail(text: str) -> int:
    print(f"wellspoken: {text}", file=sys.stderr)
    return 2


def _reword(error: ConfigError) -> str:
    """Return what is wrong with a server of which no table is known."""
    return str(error).removeprefix("backend[0].").removeprefix("backend[0]: ")


def _examine(options: argparse.Namespace, probes: Sequence[Probe]) -> int:
    """Examine one server after another; return the worst exit code. Raises ConfigError."""
    from wellspoken.proxy.doctor.reports import printing

    if options.config is None and len(options.url) == 1:
        return _print_found(printing, _diagnose(options, options.url[0], probes), options)
    code, reports = 0, []
    for at, report in enumerate(_reports(options, probes)):
        code = max(code, report.code)
        if options.json:
            reports.append(report)
            continue
        if at:
            print(flush=True)
        if report.error and not options.markdown:
            _fail(f"{report.title}: {report.error}")
        else:
            _print_found(printing, report, options)
    if options.json:
        print(printing.as_json_list(reports).decode(), end="", flush=True)
    return code


def _reports(options: argparse.Namespace, probes: Sequence[Probe]) -> Iterator[Report]:
    """Give a report of each server, also of one that is configured so that it cannot be asked."""
    from pathlib import Path

    from wellspoken.proxy.config.values import ConfigError
    from wellspoken.proxy.doctor.configured import ConfiguredServer, configured_servers
    from wellspoken.proxy.doctor.probe import Report
    from wellspoken.proxy.lifecycle.build import version

    if options.config is not None:
        servers = configured_servers(Path(options.config))
    else:
        servers = [ConfiguredServer("", url, None, {}) for url in options.url]
    for server in servers:
        try:
            yield _diagnose(options, server.url, probes, server)
        except ConfigError as error:
            yield Report(server.url, version(), error=_reword(error), name=server.name)


def _diagnose(
    options: argparse.Namespace,
    url: str,
    probes: Sequence[Probe],
    server: ConfiguredServer | None = None,
) -> Report:
    """Run the probes, and return what came of them; options win over `server`'s table.

    Raises ConfigError.
    """
    import asyncio
    import logging

    from wellspoken.proxy.doctor.diagnose import DoctorOptions, diagnose
    from wellspoken.proxy.doctor.reports.printing import ProbeProgress

    chosen = DoctorOptions(
        url=url,
        probes=probes,
        adapter=options.adapter,
        key=options.key,
        model=options.model or (server.model if server is not None else None),
        tokenizer=options.tokenizer,
        limit=options.timeout,
        tls=upstream_tls(options),
        table=server.table if server is not None else {},
        name=server.name if server is not None else "",
    )
    log = logging.getLogger("wellspoken")
    level = log.level
    log.setLevel(logging.ERROR)  # what the proxy would log of the backend, the report says
    progress = ProbeProgress(sys.stderr)
    try:
        return asyncio.run(diagnose(chosen, progress.draw))
    finally:
        log.setLevel(level)
        progress.clear()


def _compare(options: argparse.Namespace, probes: Sequence[Probe]) -> int:
    """Print two reports side by side; a name that ends in .json is a file that holds one.

    Raises ConfigError, and ValueError for a file that holds none.
    """
    from pathlib import Path

    from wellspoken.proxy.doctor.reports import comparison
    from wellspoken.proxy.doctor.reports.saved import read_report

    names = {probe.name for probe in probes}
    saved = {  # before a server is asked, which takes longer
        given: read_report(Path(given), names)
        for given in options.compare
        if given.endswith(".json") and "://" not in given
    }
    first, second = (
        saved[given] if given in saved else _diagnose(options, given, probes)
        for given in options.compare
    )
    return _print_found(comparison, comparison.Comparison(first, second), options)


def _print_found(forms: Any, found: Report | Comparison, options: argparse.Namespace) -> int:
    """Print what was found in the form that was asked for, and return the exit code.

    `forms`: the module whose `as_json`, `as_markdown` and `as_table` are this one's.
    """
    from wellspoken.proxy.doctor.reports.printing import width_of
    from wellspoken.proxy.terminal.colour import Colour

    if options.json:
        text = forms.as_json(found).decode()
    elif options.markdown:
        text = forms.as_markdown(found)
    elif found.error:
        return _fail(found.error)
    else:
        text = forms.as_table(found, width_of(sys.stdout), colour=Colour.of(sys.stdout).on)
    print(text, end="", flush=True)
    return found.code
