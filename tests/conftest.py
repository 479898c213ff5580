"""The marker `assets`: a test that needs fetched weights or data is skipped where they are missing.

`@pytest.mark.assets("librivox", "whisper-tiny.en")` names what it needs; without names it needs every asset.
With METRONOME_REQUIRE_ASSETS set, as in .ci/run, such a test fails instead of being skipped, for any reason.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from metronome_cli.errors import AssetError

REQUIRED = bool(os.environ.get("METRONOME_REQUIRE_ASSETS"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose assets are not in the cache; the reason says which, and how to get them."""
    from metronome_cli.models.assets import ASSETS, locate

    for marker in item.iter_markers("assets"):
        for name in marker.args or ASSETS:
            try:
                locate(name)
            except AssetError as error:
                pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skipped `assets` test into a failure where assets are required."""
    report = yield
    if REQUIRED and report.skipped and item.get_closest_marker("assets"):
        report.outcome = "failed"
        report.longrepr = f"skipped although METRONOME_REQUIRE_ASSETS is set: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random checkpoint that can chat."""
    from .models.tiny import save_tiny_chat  # most tests need no torch

    return save_tiny_chat(tmp_path_factory.mktemp("tiny-chat"))
