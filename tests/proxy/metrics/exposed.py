"""A scrape without a proxy."""

from __future__ import annotations

from wellspoken.proxy.metrics.series import TextFormat
from wellspoken.proxy.metrics.service import Metrics


def exposed(metrics: Metrics) -> bytes:
    """Return what /metrics would answer, at once."""
    return TextFormat().of(metrics.registry.collect())
