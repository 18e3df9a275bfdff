"""``python -m pipeline.cli``: the command for a process that starts it by its own interpreter."""

from pipeline.cli import main

main()
