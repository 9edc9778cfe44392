"""A scrape without a proxy."""

from __future__ import annotations

from wellspoken.proxy.metrics.series import TextFormat
from wellspoken.proxy.metrics.service import Metrics


def exposed(metrics: Metrics) -> bytes:
    """Return what /metrics would answer, at once."""
    return TextFormat().of(metrics.registry.collect())


def samples(text: bytes) -> dict[str, float]:
    """Return the samples of a scrape by name and labels, as they are written."""
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
