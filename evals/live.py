"""A real server and real callers, each a process of its own, as an eval needs them.

Knows:   how a profile becomes a file, how `metronome serve` and `metronome load` are run and what they leave.
Ignores: what is asked of them, and what is concluded.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from metronome_cli.cli.local_server import serving
from metronome_cli.profile import Profile


def serve_and_load(profile: Profile, seed: int, load: Sequence[str], keep: Path) -> dict[str, Any]:
    """Results of `metronome load` with the options `load` against a server of `profile`.

    Both run folders end up in `keep`, as serve/ and load/. SystemExit when the callers failed.
    """
    with tempfile.TemporaryDirectory() as runs, profile_file(profile) as path:
        serve = ["--profile", str(path), "--seed", str(seed), "--out", f"{runs}/serve"]
        with serving(serve) as url:
            command = [
                *(sys.executable, "-m", "metronome_cli", "load", url, "--json", "--seed", str(seed)),
                *("--out", f"{runs}/load", *load),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
        if done.returncode not in (0, 3):  # 3: measured, and a limit of its own was missed
            raise SystemExit(done.returncode)
        for side in ("serve", "load"):
            (run,) = Path(runs, side).iterdir()
            shutil.copytree(run, keep / side, dirs_exist_ok=True)
    results: dict[str, Any] = json.loads(done.stdout)["results"]
    return results


@contextmanager
def profile_file(profile: Profile) -> Iterator[Path]:
    """`profile` as a TOML file, for a server that is a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{profile.name}.toml")
        sections = profile.model_dump(exclude={"name", "about"}, exclude_none=True)
        lines = [
            f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
            for section, fields in sections.items()
        ]
        path.write_text("\n".join(lines), "utf-8")
        assert tomllib.loads(path.read_text("utf-8"))
        yield path
