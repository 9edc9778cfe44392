"""What coverage measures: not what is marked, of which tracing would double the time."""

from __future__ import annotations

import sys

import pytest


@pytest.mark.no_cover
def test_what_is_not_measured_is_not_traced() -> None:
    assert sys.gettrace() is None


def test_what_is_measured_is_traced(pytestconfig: pytest.Config) -> None:
    measured = bool(pytestconfig.getoption("cov_source", None))
    assert (sys.gettrace() is not None) == measured
