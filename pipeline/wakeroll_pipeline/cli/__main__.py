"""``python -m wakeroll_pipeline.cli``: the command for a process that starts it by its own interpreter."""

from wakeroll_pipeline.cli import main

main()
