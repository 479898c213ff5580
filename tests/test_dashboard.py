"""The dashboard and the scrape configuration in examples/ fit what a server exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from metronome_cli.profile import Profile, parse_profile
from metronome_cli.server.exposition import Exposition
from metronome_cli.server.metrics import Metrics
from metronome_cli.server.status import METRICS_PATH

EXAMPLES = Path(__file__).parents[1] / "examples"
DASHBOARD: dict[str, Any] = json.loads((EXAMPLES / "grafana" / "metronome.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
panels = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])


def exported() -> dict[str, set[str]]:
    """Sample name -> labels of all that /metrics can say; tests/server/test_metrics.py asks a real server."""
    metrics = Metrics(parse_profile("tested", {"model": {"kind": "null"}}))
    metrics.refused["max_sessions"] += 1
    body, _ = Exposition(metrics, lambda: True).page("")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel["targets"]]


@panels
def test_a_query_names_only_what_a_server_exports(panel: dict[str, Any]) -> None:
    known = exported()
    for query in expressions(panel):
        names = re.findall(r"\bmetronome_\w+", query)
        assert names
        assert set(names) <= known.keys()
        for name, selector in re.findall(r"\b(metronome_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r'(\w+)=~?"', selector)) <= known[name] | {"instance"}
        for labels in re.findall(r"\bby \(([^)]*)\)", query):
            assert set(labels.split(", ")) <= set().union(*(known[name] for name in names))


@panels
def test_a_query_of_a_counter_asks_for_its_growth(panel: dict[str, Any]) -> None:
    """A counter begins again with its server: its height says nothing, but for restarts of the engine."""
    for query in expressions(panel):
        grows = re.findall(r"(?:rate|increase)\((metronome_\w+)", query)
        counters = re.findall(r"metronome_\w+_(?:total|bucket)\b", query)
        assert set(counters) - {"metronome_engine_restarts_total"} <= set(grows)


@panels
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert all(target["legendFormat"] for target in panel["targets"])
    assert panel["datasource"]["uid"] == "${datasource}"


def test_panels_have_names_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells = [
        (x, y)
        for panel in PANELS
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_what_matters_most_is_on_the_board() -> None:
    shown = " ".join(query for panel in PANELS for query in expressions(panel))
    for name in (
        "freshness_seconds",
        "tick_seconds",
        "kv_occupancy_ratio",
        "mute_sessions",
        "refusals_total",
    ):
        assert f"metronome_{name}" in shown


def test_the_data_source_is_the_readers_to_choose() -> None:
    names = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert names == {"datasource": "datasource", "instance": "query"}


def test_prometheus_is_sent_to_where_a_server_listens_by_default() -> None:
    (job,) = yaml.safe_load((EXAMPLES / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    server = Profile(name="any").server
    assert job["metrics_path"] == METRICS_PATH
    assert job["static_configs"] == [{"targets": [f"{server.host}:{server.port}"]}]
