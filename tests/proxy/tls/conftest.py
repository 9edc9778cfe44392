"""Authorities whose certificates are real."""

from __future__ import annotations

import logging

import pytest

from tests.certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The one that is trusted."""
    return Authority.make(tmp_path_factory.mktemp("certificates") / "first")


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """One that is not."""
    return Authority.make(tmp_path_factory.mktemp("certificates") / "second")


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
