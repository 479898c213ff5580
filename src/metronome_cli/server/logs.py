"""Logs that callers cannot flood: one line of a kind in ten seconds, with a count of those left out.

Knows:   log records, and which of them are of one kind.
Ignores: where lines go, and what they tell of. Time is the records' own.
"""

from __future__ import annotations

import atexit
import logging
import traceback
from dataclasses import dataclass

QUIET_S = 10.0
_MOST_KINDS = 256  # a message that was put together before it was logged is a kind of its own

# What a caller sent is at fault: the line says all, and our own stack tells nothing.
_CALLERS_FAULT = (UnicodeDecodeError,)


def set_up_logging(name: str) -> None:
    """Warnings and worse go to standard error as "`name`: text", each kind once in QUIET_S.

    What was left out and never told of is told of when the process ends.
    """
    logging.basicConfig(level=logging.WARNING, format=f"{name}: %(message)s")
    once = OncePerKind()
    for handler in logging.getLogger().handlers:
        handler.addFilter(once)
        atexit.register(_tell_rest, once, handler)


@dataclass(slots=True)
class _Kind:
    shown: float  # when, in the records' seconds
    left_out: int = 0
    last: str = ""  # of those left out


class OncePerKind(logging.Filter):
    """Lets the first record of a kind through, and the next one when QUIET_S have passed.

    A kind is a logger, a message before its values are filled in, and where an exception was raised: another
    error is never taken for one that was just shown.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[object, ...], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether `record` is shown; its message then tells how many were not."""
        kind, left_out = _kind(record), 0
        if before := self._kinds.get(kind):
            if 0 <= record.created - before.shown < QUIET_S:  # a wall clock may be set back
                before.left_out += 1
                before.last = record.getMessage()
                return False
            left_out = before.left_out
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = _Kind(record.created)
        if record.exc_info and isinstance(record.exc_info[1], _CALLERS_FAULT):
            record.exc_info = record.exc_text = None
        if left_out:
            record.msg = _counted(record.getMessage(), left_out)
            record.args = None
        return True

    def rest(self) -> list[str]:
        """What was left out since a record of its kind was shown."""
        return [_counted(kind.last, kind.left_out) for kind in self._kinds.values() if kind.left_out]


def _counted(text: str, left_out: int) -> str:
    return f"{text.rstrip()} ({left_out} more like it)"


def _tell_rest(once: OncePerKind, handler: logging.Handler) -> None:
    for text in once.rest():
        handler.emit(logging.makeLogRecord({"msg": text}))  # past the filter


def _kind(record: logging.LogRecord) -> tuple[object, ...]:
    raised: tuple[object, ...] = ()
    if record.exc_info and record.exc_info[2]:
        last = traceback.extract_tb(record.exc_info[2], limit=-1)[0]
        raised = (record.exc_info[0], last.filename, last.lineno)
    return (record.name, record.msg, *raised)
