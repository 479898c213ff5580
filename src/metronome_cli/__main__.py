"""`python -m metronome_cli` is `metronome`."""

from .cli.main import main

main()
