"""Series from a live server: its metrics page, read again and again.

Knows:   addresses, restarts of the server, and how long one that stays away is waited for.
Ignores: HTTP (fetch.py), what stands on a page (pages.py), what is fitted. Time is the reader's clock: a
         page's own timestamps are not believed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from urllib.parse import SplitResult, urlsplit

from ..clock import Clock
from ..errors import FieldError, ProfileError, TargetUnreachable
from ..report import without_login
from .fetch import fetch
from .forecast import FULL
from .limits import Beats
from .pages import Reading, reading, went_back
from .series import FEWEST, Series
from .sources import Source

_PATIENCE_S = 15.0  # a server that is started again may be away for so long
_SHORT_LIVES = 3
_FREE = 0.9  # a pool that was full is free again below this share


class Page:
    """A metrics page at `url`, /metrics where that names no path; `engine` chooses one of several pools."""

    def __init__(self, url: str, clock: Clock, engine: str = "") -> None:
        self.url = without_login(url)
        self.clock = clock
        self._parts = _address(url)
        self._engine = engine

    def read(self) -> Reading:
        """Ask for the page. TargetUnreachable when none comes, or one without a pool that is known;
        FieldError when it is not clear which pool is meant, or its share is none."""
        return reading(fetch(self._parts, self.url, self.clock), self.url, self._engine)


class Course:
    """The readings of a page since its server last started, `most` of them at most (the newest).

    Seconds count from the first reading of all. `notes` says what a reader of the series should know.
    """

    def __init__(self, page: Page, most: int | None = None) -> None:
        self.page = page
        self.notes: list[str] = []
        self._readings: deque[tuple[float, Reading]] = deque(maxlen=most)
        self._zero: float | None = None
        self._answered = 0.0
        self._short_lives = 0  # one after another, too short to be fitted

    def poll(self) -> None:
        """Read the page once more. A page that stays away is waited for, but not the first time."""
        clock = self.page.clock
        try:
            found = self.page.read()
        except TargetUnreachable as error:
            if self._zero is None or clock.now() - self._answered > _PATIENCE_S:
                raise
            self._note(f"unanswered at times: {error}")
            return
        self._answered = clock.now()
        self._zero = self._answered if self._zero is None else self._zero
        at = self._answered - self._zero
        if self._readings and went_back(self._readings[-1][1], found):
            self._start_anew(at)
        elif found.occupancy < _FREE:
            self._come_free(at)
        self._readings.append((at, found))

    def every(self, seconds: float, total_s: float | None = None) -> Iterator[None]:
        """Poll at once, then every `seconds`, for `total_s` or for ever. A late poll delays no later one."""
        clock = self.page.clock
        start, number = clock.now(), 0
        while total_s is None or number * seconds <= total_s:
            clock.wait_until(start + number * seconds)
            self.poll()
            yield
            number = max(number + 1, math.ceil((clock.now() - start) / seconds))

    def source(self) -> Source:
        """What was read so far. FieldError while that is too little."""
        readings = [found for _, found in self._readings]
        series = Series.checked(
            [at for at, _ in self._readings],
            [found.occupancy for found in readings],
            _all([found.sessions for found in readings]),
            pool=readings[-1].pool if readings else None,
            stalled=_all([found.stalled for found in readings]),
            name=self.page.url,
        )
        promised = _all([found.promised for found in readings])
        return Source(series.promising(promised), _beats(readings), tuple(self.notes))

    def _come_free(self, at: float) -> None:
        """A pool that was full fills another time now: when it was full first is no forecast of that."""
        if any(before.occupancy >= FULL for _, before in self._readings):
            self._readings.clear()
            self._note(f"the pool was full, and free again by {at:.1f} s: what was read before is left out")

    def _start_anew(self, at: float) -> None:
        self._short_lives = self._short_lives + 1 if len(self._readings) < FEWEST else 0
        if self._short_lives == _SHORT_LIVES:
            cure = "its totals go back again and again: name one server, not what stands before several"
            raise FieldError("metrics-url", self.page.url, cure)
        self._readings.clear()
        self._note(f"the server started anew by {at:.1f} s: what was read before is left out")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _address(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no port, a bracket without its other half
        known = None
    if not known:
        raise ProfileError(
            "metrics-url", without_login(url), "use an address such as http://127.0.0.1:8765/metrics"
        )
    if parts.username or parts.password:
        raise ProfileError("metrics-url", without_login(url), "leave out the login: it would not be sent")
    return parts


def _beats(readings: Sequence[Reading]) -> Beats | None:
    """The mean beat between each two readings; None of a server that does not tell."""
    sessions, took, period = [], [], 0.0
    for before, after in pairwise(readings):
        if before.beat and after.beat and after.sessions and after.beat[1] > before.beat[1]:
            sessions.append(after.sessions)
            took.append((after.beat[0] - before.beat[0]) / (after.beat[1] - before.beat[1]))
            period = after.beat[2]
    return Beats(sessions, took, period) if took else None


def _all(values: Sequence[float | None]) -> list[float] | None:
    """The values where each is known."""
    known = [value for value in values if value is not None]
    return known if values and len(known) == len(values) else None
