"""Signals that a thread beside the loop's takes, as the kernel gives one to any that is running."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest

from wellspoken.proxy.lifecycle.run import loop_factory
from wellspoken.proxy.lifecycle.signals import Signals

_BUSY = """
import asyncio, hashlib, threading
from wellspoken.proxy.lifecycle.run import loop_factory
from wellspoken.proxy.lifecycle.signals import Signals

over = threading.Event()

def work():
    while not over.is_set():
        hashlib.sha256(bytes(200_000)).digest()  # without the interpreter's lock

async def main():
    signals = Signals()
    working = asyncio.gather(*(asyncio.to_thread(work) for _ in range(6)))
    print("up", flush=True)
    await signals.first.wait()
    signals.remove()
    over.set()
    await working

with asyncio.Runner(loop_factory=LOOP) as runner:
    runner.run(main())
"""


@pytest.mark.parametrize("loop", ["loop_factory()", "None"])
async def test_signals_to_busy_threads_change_no_orderly_end(loop: str) -> None:
    for _ in range(5):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _BUSY.replace("LOOP", loop)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"up\n"
        process.terminate()
        ended = asyncio.create_task(process.communicate())
        while not ended.done():
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                try:
                    os.kill(process.pid, number)
                except ProcessLookupError:
                    break
            await asyncio.sleep(0.0003)
        assert (await ended, process.returncode) == ((b"", b""), 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("factory", [loop_factory(), None], ids=["fast", "asyncio"])
def test_one_that_another_thread_takes_wakes_the_loop(
    number: signal.Signals, factory: Callable[[], asyncio.AbstractEventLoop] | None
) -> None:

    def send() -> None:
        time.sleep(0.1)  # by then the loop waits; were it not so, nothing would be shown
        os.kill(os.getpid(), number)

    async def take() -> None:
        signals = Signals()
        try:
            other = threading.Thread(target=send)
            other.start()
            signal.pthread_sigmask(signal.SIG_BLOCK, [number])  # so that `other` takes it
            event = signals.reload if number == signal.SIGHUP else signals.first
            loop = asyncio.get_running_loop()
            latest = loop.time() + 10
            await asyncio.wait_for(event.wait(), 10)
            assert loop.time() < latest, "the time limit's end woke it"
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
            signals.count = 0  # this process goes on
            signals.remove()

    before = signal.getsignal(number)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(take())
    assert signal.getsignal(number) == before
