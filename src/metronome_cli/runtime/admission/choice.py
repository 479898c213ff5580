"""The admission that a profile asks for.

Knows:   which name stands for which, and which fields each takes.
Ignores: how any of them decides.
"""

from __future__ import annotations

from ...profile import Profile
from . import Admission, FixedCap, Target
from .aimd import Aimd
from .forecast import Forecast
from .gradient import Gradient


def chosen(profile: Profile) -> Admission:
    """A new one, which has measured nothing yet."""
    asked = profile.admission
    target = Target(asked.target_share * profile.beat.frame_s, asked.percentile, asked.window_ticks)
    match asked.admit:
        case "fixed":
            return FixedCap(asked.max_sessions)
        case "aimd":
            return Aimd(target, asked.max_sessions)
        case "gradient":
            return Gradient(target, asked.max_sessions)
        case "forecast":
            return Forecast(target, asked.max_sessions, asked.horizon_s)
