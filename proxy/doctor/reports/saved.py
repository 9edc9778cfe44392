"""A report that `wellspoken doctor --json` wrote, read again."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from msgspec import DecodeError, Struct, json

from wellspoken.proxy.doctor.probe import Probe, Report, Result, Verdict, plain
from wellspoken.proxy.doctor.reports.printing import SCHEMA


class _SavedVerdict(Struct):
    state: Literal["ok", "broken", "lacks", "unclear"]
    status: int | None
    said: str | None


class _SavedResult(Struct):
    name: str
    contract: str
    backend: _SavedVerdict
    proxy: _SavedVerdict
    repairs: tuple[str, ...]
    seconds: float


class _SavedReport(Struct):
    schema: int
    wellspoken: str
    url: str
    error: str | None
    model: str | None
    backend: str | None
    notes: tuple[str, ...]
    seconds: float
    probes: tuple[_SavedResult, ...]
    name: str | None = None


def read_report(path: Path, names: Collection[str]) -> Report:
    """Return the report of a file, of the probes with these names.

    Raises ValueError for a file that is none, and says what to do.
    """
    again = f"Write it with wellspoken doctor URL --json > {path}"
    try:
        saved = json.decode(path.read_bytes(), type=_SavedReport)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}. {again}") from None
    except (DecodeError, RecursionError) as error:
        raise ValueError(f"{path} is no report of the doctor: {error}. {again}") from None
    if saved.schema != SCHEMA:
        raise ValueError(f"{path} has schema {saved.schema}, but {SCHEMA} is read here. {again}")
    return Report(
        url=plain(saved.url),
        version=plain(saved.wellspoken),
        model=saved.model or "",
        backend=saved.backend or "",
        results=tuple(_result(one) for one in saved.probes if one.name in names),
        seconds=saved.seconds,
        error=plain(saved.error or "", 2000),
        notes=tuple(plain(note, 2000) for note in saved.notes),
        name=plain(saved.name or ""),
    )


def _result(saved: _SavedResult) -> Result:
    """Return a result whose probe can be shown, but not run."""
    probe = Probe(plain(saved.name), plain(saved.contract), lambda _: (), lambda *_: ())
    repairs = tuple(map(plain, saved.repairs))
    return Result(probe, _verdict(saved.backend), _verdict(saved.proxy), repairs, saved.seconds)


def _verdict(saved: _SavedVerdict) -> Verdict:
    return Verdict(saved.state, plain(saved.said or "", 2000), saved.status or 0)
