"""A file that somebody named, read whole: opened once, in bounded bytes, and never waited for in vain.

Knows:   regular files, and pipes such as a shell's <(command).
Ignores: what is in them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import FieldError

MOST_BYTES = 512 * 2**20  # a day of beats of 80 ms is 350 MiB
_CHUNK = 2**20


def read_whole(path: Path, field: str, most: int = MOST_BYTES) -> bytes:
    """All bytes of a regular file, or of a pipe until its writers close it; `field` is for messages.

    FieldError for anything else, for a pipe that nobody writes to, and for more than `most` bytes.
    """
    try:
        with open(path, "rb", buffering=0, opener=_open) as file:
            kind = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISFIFO(kind)):
                raise FieldError(field, str(path), "give a regular file or a pipe")
            os.set_blocking(file.fileno(), True)
            body = bytearray()
            while piece := file.read(_CHUNK):
                body += piece
                if len(body) > most:
                    raise FieldError(field, str(path), f"more than {most >> 20} MiB: give a part of it")
    except OSError as error:
        raise FieldError(field, str(path), f"give a file that can be read ({error})") from None
    if not body and stat.S_ISFIFO(kind):
        raise FieldError(field, str(path), "nothing comes out of this pipe: start what writes to it first")
    return bytes(body)


def _open(path: str, flags: int) -> int:
    """Without O_NONBLOCK opening a pipe waits for a writer, who may never come. Reading may wait."""
    return os.open(path, flags | os.O_NONBLOCK)
