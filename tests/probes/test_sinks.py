"""How many first tokens are worth pinning: on made-up attention whose sinks are known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from metronome_cli.errors import FieldError
from metronome_cli.models.attention_mass import AttentionMass, Marks
from metronome_cli.probes.sinks import CURVE, KEPT, excerpt, results, suggest

HEADER = 18


def places(sinks: dict[int, float], tokens: int = 512) -> np.ndarray:
    """Mean shares of places: some sinks, and the rest spread evenly."""
    shares = np.full(tokens, (1 - sum(sinks.values())) / tokens)
    for place, share in sinks.items():
        shares[place] += share
    return shares


def watched(sinks: dict[int, float], tokens: int = 512, layers: int = 2, heads: int = 3) -> AttentionMass:
    mass = np.broadcast_to(places(sinks, tokens), (layers, heads, tokens)).copy()
    mass[0, 0] = places({}, tokens)  # one head in six leans on nothing
    ids = list(range(tokens))
    return AttentionMass(mass, ids, [f"t{n}" for n in ids], HEADER, Marks(21, 34, 42), 128)


def test_one_sink_is_one_token() -> None:
    pinned, why = suggest(places({0: 0.3}), HEADER)
    assert pinned == 1
    assert "100%" in why


def test_what_draws_little_beside_the_others_is_not_worth_a_place() -> None:
    assert suggest(places({0: 0.3, 3: 0.1, 30: 0.01}), HEADER)[0] == 4


def test_attention_without_sinks_suggests_none() -> None:
    pinned, why = suggest(places({0: 0.005}), HEADER)
    assert (pinned, "0.5%" in why) == (0, True)


def test_content_is_never_suggested_however_much_it_draws() -> None:
    pinned, why = suggest(places({0: 0.2, 23: 0.1}), HEADER)
    assert pinned == HEADER
    assert "up to place 23, is content" in why
    assert "67%" in why


def test_results_say_what_was_put_in_and_are_json() -> None:
    found = results(watched({0: 0.4, 2: 0.2}))
    rows = {row["k"]: row for row in found["kept"]}
    assert list(rows) == list(KEPT)
    assert rows[1]["share"] == pytest.approx(5 / 6 * 0.4, abs=0.01)
    assert rows[1]["heads_above"] == pytest.approx(5 / 6)
    assert rows[4]["most"] == pytest.approx(0.6, abs=0.01)
    assert rows[64]["even"] == pytest.approx(np.mean([64 / (t + 1) for t in range(128, 512)]))
    assert found["suggested"] == 3
    assert np.shape(found["heads"]["3"]) == (2, 3)
    assert len(found["places"]) == CURVE
    assert found["marks"] == {"header": 18, "content": 21, "generated": 34, "text": 42}
    assert json.loads(json.dumps(found)) == found


def test_a_strong_place_outside_of_the_header_is_named() -> None:
    found = results(watched({0: 0.3, 200: 0.05}))
    assert found["strongest"][0]["place"] == 0
    assert found["strongest"][1] == {"place": 200, "token": "t200", "share": pytest.approx(0.042, abs=0.002)}


def test_too_short_a_chat_is_refused() -> None:
    with pytest.raises(FieldError, match="more than 256"):
        results(watched({}, tokens=CURVE))


def test_an_excerpt_is_seeded_begins_a_line_and_has_room() -> None:
    text = "".join(f"line {n}\n" for n in range(10_000))
    one, other = excerpt(text, 100, 0), excerpt(text, 100, 1)
    assert one == excerpt(text, 100, 0) != other
    assert one.startswith("line ")
    assert min(len(one), len(other)) >= 400
    assert excerpt("short", 100, 0) == "short"
