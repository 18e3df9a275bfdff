"""A file of further Spark settings, in the format of spark-defaults.conf."""

import re
from pathlib import Path

from wakeroll.errors import InvalidUsage

_OURS = {
    "spark.master": "master",
    "spark.driver.memory": "driver_memory",
    "spark.sql.shuffle.partitions": "state_partitions",
}
"""Spark's name of a setting -> wakeroll's own setting for it, which other parts read too."""


class InvalidSparkProperties(InvalidUsage):
    """A file of Spark settings is not valid; the message names the file, the line and the expected format."""


def read_spark_properties(path: Path) -> dict[str, str]:
    """Read lines of a name and a value, separated by spaces or ``=``; ``#`` begins a comment line.

    Raises:
        InvalidSparkProperties: the file cannot be read, or a line is not a setting of Spark.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise InvalidSparkProperties(f"cannot read the Spark settings in {path}: {error}") from error
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = re.fullmatch(r"(spark\.[^\s=]+)(?:\s*=\s*|\s+)(.+)", text)
        if found is None:
            raise InvalidSparkProperties(f"{path} line {number} is {text!r}; it must be a name (spark.*) and a value")
        name, value = found[1], found[2]
        if name in _OURS:
            raise InvalidSparkProperties(f"{path} line {number} sets {name}; use wakeroll's setting {_OURS[name]!r}")
        settings[name] = value
    return settings
