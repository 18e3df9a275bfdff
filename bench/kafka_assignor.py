"""Kafka's uniform assignor on the same cases, run from its published JAR in a Java process."""

import os
import re
import subprocess
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.measure import ROUNDS, summary
from bench.sharing import Case, Shared, judged
from wakeroll_pipeline.prerequisites import java_path
from wakeroll_pipeline.spark.jar_paths import broker_jars
from wakeroll_pipeline.spark.jar_sums import JarsMissing

NAME = "Kafka's uniform"

_PROGRAM = Path(__file__).parent / "java" / "UniformBench.java"
_MODES = {"full": "sorted", "join": "join"}
"""What the program calls a mode -> what we call it.  Kafka's hash maps have no order, so nothing is sorted."""


class _Answer(Struct):
    mode: str
    ns: list[int]
    sizes: list[int]
    moved: int


class KafkaFailed(RuntimeError):
    """The program ended with an error; the message quotes it."""


def run(cases: list[Case], warmup_ms: int) -> tuple[list[Shared], str, str]:
    """Let the assignor share these cases, each after `warmup_ms` of practice.

    Returns:
        Its answers, its version, and why there are none: a sentence, or "".

    Raises:
        KafkaFailed: the program cannot deal with this Kafka.
    """
    java = java_path()
    if java is None or not _can_compile(java):
        return [], "", "it needs a JDK, and here is none"
    try:
        jars = broker_jars()
    except JarsMissing:
        return [], "", "its JARs are not here; `wakeroll jars broker` fetches them"
    lines = "".join(_line(case, warmup_ms) for case in cases)
    command = [java, "-Xmx1g", "-cp", os.pathsep.join(str(jar) for jar in jars), str(_PROGRAM)]
    ended = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise KafkaFailed(f"{_PROGRAM.name} ended with {ended.returncode}: {ended.stderr[-2_000:]}")
    answers = [msgspec.json.decode(line, type=_Answer) for line in ended.stdout.splitlines()]
    of_cases = [case for case in cases for _ in _MODES]
    found = [
        judged(
            NAME,
            case,
            _MODES[answer.mode],
            summary(answer.ns),
            answer.sizes,
            answer.moved if answer.mode == "join" else None,
        )
        for case, answer in zip(of_cases, answers, strict=True)
    ]
    return found, _version(jars), ""


def _line(case: Case, warmup_ms: int) -> str:
    members = ",".join("+".join(map(str, topics)) or "*" for topics in case.wanted)
    return f"{case.topics} {case.queues_each} {warmup_ms} {2 * ROUNDS} {members}\n"


def _can_compile(java: str) -> bool:
    """Whether this Java has a compiler, which a program in one source file needs."""
    asked = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=False)
    return "jdk.compiler" in asked.stdout


def _version(jars: list[Path]) -> str:
    [version] = [found[1] for jar in jars if (found := re.fullmatch(r"kafka-group-coordinator-(\d.*)\.jar", jar.name))]
    return version
