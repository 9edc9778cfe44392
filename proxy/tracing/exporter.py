"""Where spans go: OTLP over HTTP, in batches, by a thread of its own that nobody waits for."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import math
import threading
import time
from collections.abc import Mapping
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from wellspoken.engine.first_of import first_of

BATCH: Final = 64
"""Spans of one export. The encoding holds the interpreter: of the library's own 512 for 100 ms."""
QUIET: Final = 60.0
"""Seconds between two lines of the log about spans that did not arrive."""
FLUSH: Final = 5.0
"""Seconds that the last spans have at the end."""
_LOGGER: Final = "opentelemetry"
_TOLD: Final = ("opentelemetry.exporter.", "opentelemetry.sdk.")


def version() -> str:
    """Return the version of the proxy, which is also that of what makes its spans."""
    return importlib.metadata.version("wellspoken")


class Export:
    """The way of a proxy's spans to a collector, from its beginning to `close`.

    The OTEL_* variables say where to and in which batches. Raises ValueError for one that the
    exporter cannot read.
    """

    def __init__(self, log: logging.Logger, environ: Mapping[str, str]) -> None:
        self._log = log
        self._exporter = OTLPSpanExporter()
        # At exit the library would wait for a collector that hangs; `close` does so for a while.
        self.provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        size = None if environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") else _batch(environ)
        self.provider.add_span_processor(
            BatchSpanProcessor(self._exporter, max_export_batch_size=size)
        )
        self._trouble = Trouble(log)

    async def close(self, now: asyncio.Event | None = None) -> None:
        """Send what is left, for FLUSH seconds at most, or until `now` is set.

        Not in the loop's own threads, for which the end of the process would wait: the library
        cannot be interrupted while a collector does not answer. This one ends with the process.
        """
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def work() -> None:
            self.provider.shutdown()
            try:
                loop.call_soon_threadsafe(done.set)
            except RuntimeError:  # the loop is closed: it has not waited
                pass

        threading.Thread(target=work, name="traces-end", daemon=True).start()
        await first_of(done.wait(), asyncio.sleep(FLUSH), *([now.wait()] if now else []))
        if done.is_set():
            self._trouble.close()
            return
        self._trouble.mute()
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # it tries nothing again
        self._log.warning("the last spans did not arrive: the collector did not answer in time")


def _resource() -> Resource:
    """Return what is told of the proxy as a whole, where the environment does not tell it."""
    resource = Resource.create({})
    given = {} if "service.version" in resource.attributes else {"service.version": version()}
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        given["service.name"] = "wellspoken"
    return resource.merge(Resource(given))


def _batch(environ: Mapping[str, str]) -> int:
    """Return the spans of one export, which may not be more than the queue holds."""
    given = environ.get("OTEL_BSP_MAX_QUEUE_SIZE", "")
    return min(BATCH, int(given)) if given.isdecimal() and int(given) else BATCH


class Trouble(logging.Handler):
    """Says in the proxy's log that spans do not arrive, once in a while however many those are.

    The library warns for each try of each batch, and for each header of a client's that is odd;
    until `close` it says all that here, and nowhere else.
    """

    def __init__(self, log: logging.Logger) -> None:
        super().__init__(logging.WARNING)
        self.log = log
        self.next = 0.0
        self.passed = 0
        self._library = logging.getLogger(_LOGGER)
        self._before = self._library.propagate
        self._library.propagate = False
        self._library.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a warning on, unless there was one just now."""
        if not record.name.startswith(_TOLD):
            return
        if time.monotonic() < self.next:
            self.passed += 1
            return
        self.next = time.monotonic() + QUIET
        more = f" ({self.passed} more since the last such line)" if self.passed else ""
        self.passed = 0
        self.log.warning(
            "spans do not arrive; look at the collector, and at OTEL_EXPORTER_OTLP_ENDPOINT: %s%s",
            " ".join(record.getMessage().split())[:300],
            more,
        )

    def mute(self) -> None:
        """Say nothing any more: what the library is at now is given up."""
        self.next = math.inf

    def close(self) -> None:
        """Leave the library's logger as it was."""
        self._library.removeHandler(self)
        self._library.propagate = self._before
        super().close()
