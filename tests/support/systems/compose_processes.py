"""The services of deploy/compose.yaml as processes of this machine: the commands and the environment of the file."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from tests.support.running_processes import ROOT
from wakeroll_pipeline.local.child_process import Child

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")
_DATA = re.compile(r"(?<![\w/])/var/lib/wakeroll[\w./-]*")
_PROGRAMS = "/opt/"
"""Folder of the image that has programs; those of this machine are used instead."""


class ComposedServices:
    """The services whose image is that of wakeroll.

    Each volume, and each folder that a container has for itself, is a folder of the test. All processes share the
    network of this machine, so each that listens has a port of its own.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str], ports: Mapping[str, int]) -> None:
        """Read the file, and the variables of the image.

        Args:
            folder: receives the volumes and the logs.
            variables: values of the file's variables; others have their defaults.
            ports: service -> port of its metrics, or of the page.
        """
        self._folder, self._variables, self._ports = folder, variables, ports
        services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))["services"]
        self._services: dict[str, dict[str, Any]] = {
            name: its for name, its in services.items() if "WAKEROLL_IMAGE" in its["image"]
        }
        image = (ROOT / "deploy" / "container" / "Containerfile").read_text(encoding="utf-8").rpartition("\nENV ")[2]
        self._image = dict(re.findall(r"\b(WAKEROLL_\w+)=(\S+)", image.partition("\nUSER ")[0]))

    @property
    def names(self) -> list[str]:
        """Services in the order of the file."""
        return list(self._services)

    def process(self, name: str) -> Child:
        """Return the process of a service, which is not started."""
        environment = {**self._image, **self._services[name]["environment"]}
        words = list(self._services[name]["command"])
        if name in self._ports and "serve" in words:
            words += ["--port", str(self._ports[name])]
        elif name in self._ports:
            environment["WAKEROLL_METRICS_PORT"] = str(self._ports[name])
        for volume in self._services[name]["volumes"]:
            self._place(name, self._value(volume).split(":")[1]).mkdir(parents=True, exist_ok=True)
        folder = self._place(name, "/etc/wakeroll")  # the working folder of the image
        folder.mkdir(parents=True, exist_ok=True)
        return Child(
            name,
            [sys.executable, "-m", "wakeroll_pipeline.cli", *(self._here(name, word) for word in words)],
            log=self._folder / f"{name}.log",
            env={
                **os.environ,
                **{key: self._here(name, value) for key, value in environment.items() if _PROGRAMS not in value},
            },
            folder=folder,
            grace_s=90,
        )

    def _here(self, service: str, text: str) -> str:
        """Return a word of a command, or a value, with the file's variables and this machine's paths."""
        return _DATA.sub(lambda path: str(self._place(service, path[0])), self._value(text))

    def _value(self, text: str) -> str:
        return _VARIABLE.sub(lambda found: self._variables.get(found[1], found[2] or ""), text)

    def _place(self, service: str, path: str) -> Path:
        """Return the place of a container's path."""
        mounted = [self._value(volume).split(":") for volume in self._services[service]["volumes"]]
        found = [
            (len(target), source, target)
            for source, target, *_ in mounted
            if PurePosixPath(path).is_relative_to(target)
        ]
        if not found:
            return self._folder / service / path.lstrip("/")
        _, source, target = max(found)
        return self._folder / source / PurePosixPath(path).relative_to(target)
