"""Many devices under many calls, in virtual time: what admission would do with a load that nobody can make.

Knows:   tickers, admission and the recorder as a server runs them, and events in order of their time.
Ignores: models (a tick takes what a fitted cost says), and what is said. Time is counted, never read.

The beat makes objects of every frame; an hour of a hundred devices has too many of them. Here a device serves
all its calls at once (device.py), and tells admission and the recorder what the beat would have told them.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from ..profile import Profile
from ..trace import TickRecord
from .admission import POOL_FULL, Admission, Measured
from .admission.choice import chosen
from .cost import Cost
from .device import Course, Device, Load
from .recorder import Recorder
from .ticker import Tick, Ticker

_LOOKS = 240  # at the whole fleet, for a picture
# Events of one moment, in their order: who hangs up makes room for who comes.
_HANG_UP, _ARRIVE, _END, _BEGIN, _LOOK = range(5)


@dataclass(frozen=True, slots=True)
class Call:
    """One offer, in seconds: when it comes, and how long it stays if it gets in."""

    at: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Look:
    """The fleet at a moment: seconds, live calls, shares of the pools that are held."""

    at: float
    live: int
    occupancy: float  # in the mean
    fullest: float


@dataclass(slots=True)
class Simulated:
    """What became of the calls. Times in seconds from the start, shares 0..1."""

    t_sat: list[float | None]  # by device: the end of the first tick in which a call got no block
    offered: int = 0
    admitted: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # by reason
    peak_live: int = 0  # of the whole fleet
    peak_occupancy: float = 0.0  # of the fullest pool after a tick
    ticks: int = 0  # with calls
    late: int = 0  # of them, done later than the profile's target
    skipped: int = 0  # beats
    frames: int = 0
    stalled: int = 0  # of them
    looks: list[Look] = field(default_factory=list)


@dataclass(slots=True)
class _Place:
    """A device with what a server has around it."""

    name: str
    device: Device
    ticker: Ticker
    admission: Admission
    random: np.random.Generator
    tick: Tick = field(default_factory=lambda: Tick(0, 0.0))  # in progress, or the latest
    start: float = 0.0  # of that


class Fleet:
    """Devices like one another, each with its own beat and its own admission, all of one profile.

    An arrival is offered to the device with the fewest calls, the first of several, and only there. The beats
    of several devices begin evenly within a period.
    """

    def __init__(self, profile: Profile, cost: Cost, load: Load, devices: int) -> None:
        """The profile's seed is that of the ticks' noise. ProfileError where the load does not fit it."""
        frame_s, course = profile.beat.frame_s, Course(profile, load)
        self._cost = cost
        self._target_s = profile.admission.target_share * frame_s
        self._places = [
            _Place(
                f"device-{number}",
                Device(profile.pool.count, course),
                Ticker(frame_s, frame_s * (1 + number / devices)),
                chosen(profile),
                np.random.default_rng((profile.run.seed, number)),
            )
            for number in range(devices)
        ]
        self._live = np.zeros(devices, np.int64)  # calls by device
        self._on: dict[int, int] = {}  # the device of each live call
        self._events: list[tuple[float, int, int]] = []  # when, what (in `run`), call or device
        self._told = Simulated([None] * devices)

    def run(self, calls: Sequence[Call], duration_s: float, recorder: Recorder) -> Simulated:
        """Offer the calls that come, and run the ticks that end, within `duration_s`. Once for each fleet.

        Recorded ticks have their device's name for an arm.
        """
        self._recorder = recorder
        self._lengths = [call.length_s for call in calls]
        events = self._events
        events += [(call.at, _ARRIVE, number) for number, call in enumerate(calls)]
        events += [(place.ticker.next_due, _BEGIN, number) for number, place in enumerate(self._places)]
        events += [(duration_s * number / _LOOKS, _LOOK, number) for number in range(_LOOKS + 1)]
        heapq.heapify(events)
        steps = (self._hang_up, self._arrive, self._end, self._begin, self._look)
        while events[0][0] <= duration_s:  # there is always a next beat
            now, what, number = heapq.heappop(events)
            steps[what](now, number)
        return self._told

    def _hang_up(self, now: float, call: int) -> None:
        device = self._on.pop(call)
        self._places[device].device.close(call)
        self._live[device] -= 1

    def _arrive(self, now: float, call: int) -> None:
        device = int(self._live.argmin())
        place = self._places[device]
        self._told.offered += 1
        refused = place.admission.decide(len(place.device))
        if refused or not place.device.open(call):
            reason = refused.reason if refused else POOL_FULL
            self._told.refused[reason] = self._told.refused.get(reason, 0) + 1
            return
        self._told.admitted += 1
        self._live[device] += 1
        self._on[call] = device
        self._told.peak_live = max(self._told.peak_live, len(self._on))
        heapq.heappush(self._events, (now + self._lengths[call], _HANG_UP, call))

    def _begin(self, now: float, number: int) -> None:
        """Serve a frame of every call. A tick ends when the cost says; without calls, at once."""
        place = self._places[number]
        place.tick, place.start = place.ticker.take(now) or place.tick, now  # it is due
        served = place.device.tick()
        if not served.sessions:
            self._end(now, number)
            return
        line_s = self._cost.seconds(served.sessions, place.device.leased, served.tokens_in, served.tokens_out)
        took_s = line_s * self._cost.ratio(place.random.random())
        heapq.heappush(self._events, (now + took_s, _END, number))

    def _end(self, now: float, number: int) -> None:
        """Tell admission and the recorder of the tick, as the beat does, and wait for the next one."""
        place = self._places[number]
        served, pool, tick = place.device.served(), place.device.usage(), place.tick
        place.admission.observe(
            Measured(
                due=tick.due,
                done=now,
                served=served.sessions,
                live=len(place.device),
                fresh_s=now - tick.due if served.tokens_out else None,
                stalled=served.stalled,
                older=served.older,
                grown=served.grown,
                pool=pool,
            )
        )
        record = TickRecord(
            tick=tick.index,
            due=tick.due,
            start=place.start,
            done=now,
            skipped=tick.skipped,
            sessions=served.sessions,
            stalled=served.stalled,
            empty=served.empty,
            tokens_in=served.tokens_in,
            tokens_out=served.tokens_out,
            kv_leased=pool.leased,
            kv_reserved=pool.reserved,
            kv_total=pool.total,
            cap=place.admission.cap.calls,
            cap_reason=place.admission.cap.reason,
            arm=place.name,
        )
        self._recorder.tick(record, ())
        self._count(record, number)
        heapq.heappush(self._events, (max(now, place.ticker.next_due), _BEGIN, number))

    def _count(self, tick: TickRecord, number: int) -> None:
        told = self._told
        told.skipped += tick.skipped
        told.peak_occupancy = max(told.peak_occupancy, tick.kv_leased / tick.kv_total)
        if not tick.sessions:
            return
        told.ticks += 1
        told.late += tick.done - tick.due > self._target_s
        told.frames += tick.sessions
        told.stalled += tick.stalled
        if tick.stalled and told.t_sat[number] is None:
            told.t_sat[number] = tick.done

    def _look(self, now: float, _: int) -> None:
        full = [place.device.leased / place.device.blocks for place in self._places]
        self._told.looks.append(Look(now, len(self._on), fmean(full), max(full)))
