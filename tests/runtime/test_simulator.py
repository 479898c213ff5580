"""Simulated devices beside what a server runs: the same beats, the same admission, the same blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metronome_cli.clock import VirtualClock
from metronome_cli.errors import ProfileError
from metronome_cli.frame import Failed, Frame, Prefilled, Refused, Said, Stalled, TickEvent
from metronome_cli.models.null import HEARD_PER_S, NullModel
from metronome_cli.profile import Profile, parse_profile
from metronome_cli.runtime.admission.choice import chosen
from metronome_cli.runtime.beat import Beat
from metronome_cli.runtime.cost import Cost
from metronome_cli.runtime.device import Course, Device, Load
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.runtime.sessions import Sessions
from metronome_cli.runtime.simulator import Call, Fleet, Simulated
from metronome_cli.runtime.ticker import Ticker
from metronome_cli.speech import RATE
from metronome_cli.trace import FrameRecord, TickRecord, read_records

FRAME_S = 0.5  # three tokens in two frames
HEADER = 5
COST = Cost(0.03, 0.01, 0.0005, 0.002, 0.004)


def profile(**fields: Any) -> Profile:
    """A small device: eight blocks for each of a few calls."""
    data: dict[str, Any] = {
        "model": {"kind": "null", "mode": "free", "header": ""},
        "beat": {"frame_s": FRAME_S, "tau": 2, "prefill_tokens": 6},
        "window": {"window": 20, "sinks": HEADER},
        "pool": {"blocks": 60, "block_size": 4},
        "admission": {"max_sessions": 30, "window_ticks": 5, "horizon_s": 8.0},
    }
    for name, value in fields.items():
        section, _, field = name.partition("_")
        data.setdefault(section, {})[field] = value
    return parse_profile("small", data)


def load(of: Profile) -> Load:
    """What the null model hears and says in free mode; the header comes to it as a text."""
    return Load(HEARD_PER_S * FRAME_S, of.beat.tau, HEADER)


def calls(seed: int, rate_hz: float = 1.0, mean_s: float = 12.0, duration_s: float = 60.0) -> list[Call]:
    """Callers who come and go at random."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(1 / rate_hz, int(2 * rate_hz * duration_s)))
    lengths = random.exponential(mean_s, len(arrivals))
    return [Call(float(at), float(length)) for at, length in zip(arrivals, lengths, strict=True)]


class Slow(NullModel):
    """The null model, whose ticks take what they cost."""

    def __init__(self, of: Profile, clock: VirtualClock) -> None:
        super().__init__(of)
        self._clock = clock

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        events = list(super().tick(frames))
        tokens_in = sum(event.tokens_in for event in events if isinstance(event, Prefilled))
        tokens_out = sum(isinstance(event, Said) for event in events)
        self._clock.advance(COST.seconds(len(frames), self.usage().leased, tokens_in, tokens_out))
        yield from events


class Server:
    """What `metronome serve` runs around a model, with callers in place of a gateway."""

    def __init__(self, of: Profile, offered: Sequence[Call], folder: Path) -> None:
        self.clock = VirtualClock()
        self.admitted, self.refused = 0, dict[str, int]()
        self._offered = offered
        model = Slow(of, self.clock)
        self._sessions = Sessions(model, chosen(of), 1e6, 0)
        self._recorder = Recorder(folder, self.clock)
        self._beat = Beat(model, self._sessions, self, self._recorder, self.clock)
        self._ticker = Ticker(FRAME_S, FRAME_S)
        self._next = 0  # call to come
        self._ends: list[tuple[float, int]] = []

    def run(self, duration_s: float) -> None:
        while self._ticker.next_due <= duration_s:
            self._come_and_go(max(self.clock.now(), self._ticker.next_due))
            self.clock.wait_until(self._ticker.next_due)
            for session in self._sessions:
                session.hear(np.zeros(int(FRAME_S * RATE), np.float32), self.clock.now())
            tick = self._ticker.take(self.clock.now())
            assert tick is not None
            self._beat.run(tick)
        self._recorder.close()

    def _come_and_go(self, now: float) -> None:
        """All calls that come or end by `now`, in order."""
        while True:
            arrival = self._offered[self._next].at if self._next < len(self._offered) else math.inf
            end, session = min(self._ends, default=(math.inf, 0))
            if min(arrival, end) > now:
                return
            if end <= arrival:
                self._ends.remove((end, session))
                self._sessions.close(session)
                continue
            opened = self._sessions.open(arrival)
            if isinstance(opened, Refused):
                self.refused[opened.reason] = self.refused.get(opened.reason, 0) + 1
            else:
                opened.read("word " * HEADER, arrival)
                self.admitted += 1
                self._ends.append((arrival + self._offered[self._next].length_s, opened.id))
            self._next += 1

    def prefilled(self, frame: Prefilled) -> None: ...

    def lost(self, frame: Stalled, utterances: int) -> None: ...

    def said(self, word: Said) -> None: ...

    def failed(self, call: Failed) -> None: ...

    def frame_done(self, frame: FrameRecord, tick: TickRecord) -> None: ...

    def breathe(self) -> None:
        self._come_and_go(self.clock.now())


def simulated(
    of: Profile, offered: Sequence[Call], duration_s: float, folder: Path | None = None, devices: int = 1
) -> Simulated:
    recorder = Recorder(folder, VirtualClock())
    found = Fleet(of, COST, load(of), devices).run(offered, duration_s, recorder)
    recorder.close()
    return found


def ticks_of(folder: Path, until: float) -> list[TickRecord]:
    """The ticks that ended in time, without their arm; moments to a nanosecond."""
    found = []
    for tick in read_records(folder / "trace.jsonl", TickRecord):
        if tick.done <= until:
            moments = {name: round(getattr(tick, name), 9) for name in ("due", "start", "done")}
            found.append(msgspec.structs.replace(tick, arm="", **moments))
    return found


@pytest.mark.parametrize("admit", ["fixed", "aimd", "gradient", "forecast"])
@pytest.mark.parametrize("policy", ["window", "unbounded", "recycle"])
def test_a_simulated_device_does_tick_by_tick_and_block_by_block_what_a_server_does(
    policy: str, admit: str, tmp_path: Path
) -> None:
    of = profile(window_policy=policy, admission_admit=admit)
    for seed in range(3):
        folders = [tmp_path / f"{name}-{seed}" for name in ("server", "simulated")]
        for folder in folders:
            folder.mkdir()
        offered = calls(seed)
        server = Server(of, offered, folders[0])
        server.run(60.0)
        found = simulated(of, offered, 60.0, folders[1])
        real, simulation = (ticks_of(folder, 59.0) for folder in folders)
        assert len(real) > 50
        assert simulation == real
        assert found.t_sat == [next((tick.done for tick in real if tick.stalled), None)]
        if (policy, admit) != ("unbounded", "forecast"):  # which stalls when calls outlast its horizon
            assert any(tick.stalled for tick in real) == (policy == "unbounded")


def test_admitted_and_refused_are_the_servers(tmp_path: Path) -> None:
    of = profile(admission_max_sessions=4)
    offered = calls(3, duration_s=40.0)
    server = Server(of, offered, tmp_path)
    server.run(40.0)
    found = simulated(of, offered, 40.0)
    server_saw = [server.admitted, sum(server.refused.values())]
    assert found.offered == sum(call.at <= 40.0 for call in offered)
    assert [found.admitted, sum(found.refused.values())] == pytest.approx(
        server_saw, abs=1
    )  # at the very end
    assert found.refused.keys() == {"max_sessions"}


@given(st.integers(0, 99), st.sampled_from(["window", "unbounded"]))
@settings(max_examples=15, deadline=None)
def test_offers_are_admitted_or_refused_and_pools_are_never_over_full(seed: int, policy: str) -> None:
    of = profile(window_policy=policy, admission_admit="forecast")
    offered = calls(seed, rate_hz=4.0, duration_s=30.0)
    found = simulated(of, offered, 30.0, devices=3)
    assert found.offered == found.admitted + sum(found.refused.values())
    assert 0 < found.peak_live <= found.admitted
    assert found.peak_occupancy <= 1.0
    assert all(0 <= look.occupancy <= look.fullest + 1e-9 <= 1.0 + 1e-9 for look in found.looks)
    assert simulated(of, offered, 30.0, devices=3) == found


def test_an_arrival_goes_to_the_device_with_the_fewest_calls() -> None:
    of = profile(admission_max_sessions=2)
    offered = [Call(0.01 * number, 100.0) for number in range(10)]
    found = simulated(of, offered, 5.0, devices=3)
    assert (found.admitted, found.refused) == (6, {"max_sessions": 4})


def test_late_ticks_and_skipped_beats_are_counted() -> None:
    of = profile(admission_max_sessions=10, pool_blocks=200)
    found = simulated(of, [Call(0.0, 100.0)] * 10, 20.0)
    # Ten calls take 0.03 + 0.1 + 0.03 + 0.03 + 0.08 s and less: under the target of 0.4 s.
    assert (found.late, found.skipped) == (0, 0)
    slow = Fleet(of, Cost(0.7, 0.0), load(of), 1)
    told = slow.run([Call(0.0, 100.0)] * 10, 20.0, Recorder(None, VirtualClock()))
    assert told.late == told.ticks
    assert told.skipped == pytest.approx(20 / 0.5 - 20 / 0.7, abs=2)


def test_the_noise_of_ticks_hangs_on_the_seed() -> None:
    noisy = msgspec.structs.replace(COST, ratios=(0.5, 1.0, 6.0))

    def late(seed: int) -> int:
        of = profile(run_seed=seed)
        fleet = Fleet(of, noisy, load(of), 1)
        return fleet.run(calls(1), 60.0, Recorder(None, VirtualClock())).late

    assert late(0) == late(0)
    assert len({late(seed) for seed in range(5)}) > 1


def test_a_long_header_is_read_over_several_frames() -> None:
    of = profile(pool_blocks=100)
    device = Device(of.pool.count, Course(of, Load(1.0, 2.0, 15)))
    assert device.open(1)
    assert [device.tick().tokens_in for _ in range(5)] == [6, 6, 6, 1, 1]
    assert device.usage().reserved == Course(of, Load(1.0, 2.0, 15)).bound


@pytest.mark.parametrize(
    ("name", "heard", "said"), [("heard", 7.0, 2.0), ("said", 1.0, 2.5), ("heard", -1.0, 2.0)]
)
def test_a_load_that_the_beat_cannot_take_is_refused(name: str, heard: float, said: float) -> None:
    with pytest.raises(ProfileError, match=f"{name} = "):
        Course(profile(), Load(heard, said, HEADER))
