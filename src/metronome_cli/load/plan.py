"""What a load run offers: the one frozen object that all of load/ reads.

Knows:   every setting, which of them exclude each other, and when each line dials.
Ignores: how calls are held and measured.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import ProfileError
from ..report import without_login
from .arrivals import KINDS, Manner, arrival_times, spread_shares, stay
from .lengths import Length
from .protocols import CANNOT_CANCEL, CANNOT_CHOOSE, MODALITIES, NAMES
from .targets import endpoint


@dataclass(frozen=True, slots=True)
class Plan:
    """What to offer. All `_s` are seconds, rates of replies and calls are shares, 0..1.

    A closed population keeps `sessions` lines busy: with a `call_length`, a line whose call is over dials
    anew. An open one (`redial` False) makes `sessions` calls in total, whatever became of the others. A call
    that is refused is dialled again up to `redials` times: a further attempt of the same call.
    """

    url: str
    sessions: int
    duration_s: float
    seed: int = 0
    spread_s: float | None = None  # all join within it; None: one frame of the server
    arm: str = ""
    protocol: str = "auto"
    model: str = ""  # for servers that ask which one
    redial: bool = True
    redials: int = 0  # times that a call is dialled again when the server says no to it
    rate_hz: float | None = None  # arrivals per second, instead of the spread
    arrivals: str = "constant"
    call_length: Length | None = None
    cancel_rate: float = 0.0
    vanish_rate: float = 0.0
    talk_s: float | None = None
    silence_s: float | None = None
    replies: str = "auto"  # what replies are to be, one of protocols.MODALITIES
    keep_speech: int = 0  # calls whose speech is kept
    budget_s: float | None = None  # what freshness may be; None: one frame of the server
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        endpoint(self.url)
        self._check_numbers()
        self._check_words()

    def _check_numbers(self) -> None:
        if self.sessions < 1:
            raise ProfileError("sessions", self.sessions, "use 1 or more")
        if self.redials < 0:
            raise ProfileError("redials", self.redials, "use 0 or more")
        if self.spread_s is not None and not self.spread_s >= 0:
            raise ProfileError("spread", self.spread_s, "use 0 or more seconds")
        if not self.duration_s > (self.spread_s or 0.0):
            cure = f"use more than the {self.spread_s or 0.0:g} s of joining"
            raise ProfileError("duration", self.duration_s, cure)
        for name in ("rate_hz", "talk_s", "silence_s", "budget_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ProfileError(_OPTIONS.get(name, name), value, "use more than 0")
        for name in ("cancel_rate", "vanish_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ProfileError(_OPTIONS[name], getattr(self, name), "use a share, 0 to 1")

    def _check_words(self) -> None:
        if self.protocol not in NAMES:
            raise ProfileError("protocol", self.protocol, f"use one of {', '.join(NAMES)}")
        if self.replies not in MODALITIES:
            raise ProfileError("replies", self.replies, f"use one of {', '.join(MODALITIES)}")
        if self.replies != "auto" and self.protocol in CANNOT_CHOOSE:
            raise ProfileError("replies", self.replies, f"{self.protocol} has no way to choose; leave it out")
        if self.arrivals not in KINDS:
            raise ProfileError("arrivals", self.arrivals, f"use one of {', '.join(KINDS)}")
        if self.arrivals != "constant" and self.rate_hz is None:
            raise ProfileError("arrivals", self.arrivals, "give an --arrival-rate with it")
        if self.protocol == "vllm" and not self.model:
            raise ProfileError("model", "", "name the model that the server serves")
        if self.cancel_rate and self.protocol in CANNOT_CANCEL:
            raise ProfileError(
                "cancel-rate", self.cancel_rate, f"{self.protocol} has no way to cancel a reply"
            )
        if (self.talk_s is None) != (self.silence_s is None):
            raise ProfileError("talk", self.talk_s, "give --talk and --silence together")

    def joins(self, frame_s: float) -> list[float]:
        """When each line dials first, in seconds from the start; `frame_s` stands in for an open spread."""
        if self.rate_hz is not None:
            return arrival_times(self.arrivals, self.rate_hz, self.sessions, self.duration_s, self.seed)
        spread = frame_s if self.spread_s is None else self.spread_s
        return [share * spread for share in spread_shares(self.sessions, self.seed)]

    def manner(self, caller: int) -> Manner:
        """What kind of caller number `caller` is."""
        length_s, vanish_s = stay(self.seed, caller, self.call_length, self.duration_s, self.vanish_rate)
        return Manner(length_s, vanish_s, self.cancel_rate, self.seed, self.arm)

    def settings(self) -> dict[str, Any]:
        """All that a report may show: everything but the key and a password."""
        shown = asdict(self)
        del shown["api_key"]
        shown["url"] = without_login(self.url)
        return shown | {"call_length": self.call_length.text if self.call_length else None}


_OPTIONS = {
    "rate_hz": "arrival-rate",
    "talk_s": "talk",
    "silence_s": "silence",
    "budget_s": "budget",
    "cancel_rate": "cancel-rate",
    "vanish_rate": "vanish-rate",
}
