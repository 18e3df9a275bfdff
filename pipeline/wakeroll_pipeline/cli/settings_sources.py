"""The sources of settings: options, environment variables and `wakeroll.toml`.

They are read once, when a process starts; no other module reads the file or the environment.
"""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from wakeroll.errors import InvalidUsage
from wakeroll.expectations import problem_in
from wakeroll_model import config
from wakeroll_pipeline.settings import PREFIX, InvalidSettings, Settings
from wakeroll_pipeline.storage.place import Place

_AWS_NAMES = {
    "s3_endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "s3_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
"""Setting -> AWS's own environment variables for it; the first that is set counts."""

_NOT_ABOVE = (
    ("max_group_bytes", "max_shard_bytes"),
    ("max_holds_per_queue", "max_holds_per_shard"),
    ("max_lives_per_queue", "max_lives_per_shard"),
    ("max_filters_per_queue", "max_filters_per_shard"),
)
"""Pairs of limits; the first must not be above the second, because the second includes it."""


def load(environment: Mapping[str, str], file: Path | None = None, **given: Any) -> Settings:
    """Read the settings of a deployment.

    Args:
        environment: environment variables, usually `os.environ`; those named WAKEROLL_* are read.
        file: a TOML file; None: `wakeroll.toml` in the working folder, if it exists.
        given: values of command-line options; they override the environment, which overrides the file.  None: absent.

    Raises:
        InvalidSettings: the file cannot be read, a name is unknown, or a value is out of its bounds.
    """
    values = _from_aws(environment) | _from_file(file) | _from_environment(environment)
    values |= {name: value for name, value in given.items() if value is not None}
    for name in values:
        if name not in Settings.__struct_fields__:
            raise InvalidSettings(f"unknown setting {name!r}; {_alternatives(name)}")
    try:
        settings = msgspec.convert(values, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidSettings(f"invalid setting: {problem_in(values, Settings, strict=False) or error}") from error
    for smaller, larger in _NOT_ABOVE:
        if getattr(settings, smaller) > getattr(settings, larger):
            raise InvalidSettings(
                f"{smaller} is {getattr(settings, smaller)}; it must be at most {larger} ({getattr(settings, larger)})"
            )
    for place in filter(None, (settings.home, settings.checkpoints)):
        try:
            Place.of(place)
        except InvalidUsage as error:
            raise InvalidSettings(str(error)) from None
    return settings


def load_named(environment: Mapping[str, str], file: Path) -> Settings:
    """Read the settings of one of several deployments: its file overrides the environment, which all of them share.

    Raises:
        InvalidSettings: as for `load`; or the file names no broker.
    """
    named = _from_file(file)
    if not named.get("bootstrap"):
        raise InvalidSettings(f'{file} names no broker; it must have a line like bootstrap = "host:9092"')
    overridden = {PREFIX + name.upper() for name in named}
    return load({name: value for name, value in environment.items() if name not in overridden}, file)


def _from_file(file: Path | None) -> dict[str, Any]:
    path = file or Path("wakeroll.toml")
    if file is None and not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSettings(f"cannot read the settings in {path}: {error}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: environment[PREFIX + name.upper()]
        for name in Settings.__struct_fields__
        if PREFIX + name.upper() in environment
    }


def _from_aws(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that AWS's own variables contain."""
    found = {
        name: next((environment[aws] for aws in names if environment.get(aws)), "")
        for name, names in _AWS_NAMES.items()
    }
    return {name: value for name, value in found.items() if value}


def _alternatives(name: str) -> str:
    """Return a hint for an unknown name: the most similar setting, or all settings except the limits."""
    names = Settings.__struct_fields__
    if near := difflib.get_close_matches(name, names, n=1):
        return f"did you mean {near[0]!r}?"
    limits = config.Limits.__struct_fields__
    own = ", ".join(known for known in names if known not in limits)
    return f"the settings are: {own}, and the limits that docs/protocol.md lists"
