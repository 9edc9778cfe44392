"""What the store of completions counts: rows that wait, transactions, failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

STORE_FAILURES: Final = ("unavailable", "unusable", "spool", "row", "internal")
_BATCH_ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_WRITE_SECONDS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip


class StoreMetrics:
    """What the store of completions does; see `proxy/store`."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        ours: dict[str, Any] = {"namespace": "wellspoken_store", "registry": self.registry}
        rows = Gauge(
            "rows",
            "Stored completions that wait to be written: in memory (queue), or in the local spool "
            "until PostgreSQL is back.",
            ["place"],
            **ours,
        )
        size = Gauge("bytes", "Bytes that these take.", ["place"], **ours)
        self._queue_rows, self._queue_bytes = rows.labels("queue"), size.labels("queue")
        self._spool_rows, self._spool_bytes = rows.labels("spool"), size.labels("spool")
        # Another thread writes, so these are the library's, with their locks.
        text = "Stored completions written in one transaction."
        self.batch = Histogram("batch_rows", text, buckets=_BATCH_ROWS, **ours)
        text = "Time that a transaction of stored completions took."
        self.write = Histogram("write_seconds", text, buckets=_WRITE_SECONDS, **ours)
        text = "Attempts to store or to read that failed, by reason."
        self.failures = Counter("failures", text, ["reason"], **ours)
        for reason in STORE_FAILURES:
            self.failures.labels(reason)
        text = "Completions that were to be stored and are not."
        self.dropped = Counter("dropped", text, **ours)

    def count_failure(self, reason: str) -> None:
        """Count a failure; the reasons are few and the program's own words."""
        self.failures.labels(reason).inc()

    def wrote(self, rows: int, seconds: float) -> None:
        """Count one transaction."""
        self.batch.observe(rows)
        self.write.observe(seconds)

    def watch_queue(self, rows: Callable[[], float], size: Callable[[], float]) -> None:
        """Let a scrape ask for what waits to be written."""
        self._queue_rows.set_function(rows)
        self._queue_bytes.set_function(size)

    def note_spool(self, rows: int, size: int) -> None:
        """Note what the spool holds."""
        self._spool_rows.set(rows)
        self._spool_bytes.set(size)
