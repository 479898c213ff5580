"""Calls that are old at once: what a step costs an old call is measured without living through its age.

Knows:   an engine's sessions, their lanes and positions.
Ignores: what their caches hold: whatever lay there.
"""

from __future__ import annotations

from metronome_cli.engine.engine import Engine


def age(engine: Engine, number: int, tokens: int) -> None:
    """Make a session as old as if it had appended so many tokens."""
    session = engine._sessions[number]
    lane = session.lane
    while lane.length < tokens:
        assert lane.extend(min(engine.max_append, tokens - lane.length)), "the pool has no block left"
        lane.retire()
    session.rotary_end = tokens
