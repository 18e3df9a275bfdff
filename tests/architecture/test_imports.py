"""Imports point one way: model <- wakeroll <- pipeline.  Read from the sources; nothing is imported."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
OURS = ("model", "wakeroll", "pipeline", "bench")

PURE = frozenset(
    {
        "__future__", "abc", "array", "base64", "binascii", "bisect", "collections", "dataclasses", "decimal", "enum",
        "fractions", "functools", "hashlib", "heapq", "hmac", "importlib", "itertools", "json", "math", "operator",
        "pkgutil", "re", "statistics", "string", "struct", "typing",
    }
)  # fmt: skip
"""What the model may use of the standard library: nothing that knows the time, the machine, chance or the outside.

`importlib` and `pkgutil` find the strategies beside each other; they read no more than an import does.
"""

ONE_FILE: dict[str, frozenset[str]] = {
    "model/wakeroll_model/replay.py": frozenset({"argparse", "sys"}),
    "model/wakeroll_model/ed25519.py": frozenset({"cryptography"}),
}
"""A file -> what it alone may use besides.  The replay is a command: arguments, standard input and output.  Ed25519 is
too slow in Python; its library is imported when the first such key is used."""

LEAVES = ("sources", "operators", "sinks")
"""Parts of the pipeline that do not know each other; a job joins them."""

MACHINE_PATH = re.compile(r"(?<![\w.{}$/-])/(?:home|root|Users|work|mnt)/\w+|[A-Z]:\\Users\\")
"""A path that is right on one machine only.  Containers have their own folders, such as /opt and /etc."""


def files_of(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(path: Path, root: Path = ROOT) -> Iterator[str]:
    """Yield every module that a file imports, wherever in it, relative ones by their full name."""
    package = path.relative_to(root).parent.parts
    if package[0] in ("model", "pipeline"):
        package = package[1:]  # they have the packages in them
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            # `from wakeroll_pipeline import sinks` imports wakeroll_pipeline.sinks.
            yield from (f"{module}.{alias.name}" for alias in node.names)
            yield module


def strangers(paths: list[Path], allowed: frozenset[str] | set[str]) -> list[str]:
    """Return file: module for each import whose first name is not allowed."""
    return sorted(
        {
            f"{name_of(path)}: {module}"
            for path in paths
            for module in imports_of(path)
            if module.partition(".")[0] not in allowed | ONE_FILE.get(name_of(path), frozenset())
        }
    )


def test_the_model_is_pure():
    """No clock, no chance, no I/O: the same events give the same decisions, in Spark, in a test, in a replay."""
    assert strangers(files_of("model"), PURE | {"msgspec", "wakeroll_model"}) == []


def test_the_model_calls_nothing_impure_that_needs_no_import():
    """`hash` and `id` differ from one process to the next, the others reach outside."""
    impure = {"open", "input", "print", "exec", "eval", "compile", "__import__", "breakpoint", "hash", "id"}
    calls = [
        f"{name_of(path)}:{node.lineno}: {node.func.id}"
        for path in files_of("model")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in impure
        if name_of(path) not in ONE_FILE or node.func.id != "print"
    ]

    assert calls == []


def test_a_strategy_knows_nothing_of_the_machine():
    """It is one file that somebody else may write: queues, clients and parameters in, shares out."""
    allowed = ("wakeroll_model.queue", "wakeroll_model.strategies", "wakeroll_model.balance", "wakeroll_model.config")
    known = [
        f"{name_of(path)}: {module}"
        for path in files_of("model/wakeroll_model/strategies")
        for module in imports_of(path)
        if module.startswith("wakeroll_model") and not module.startswith(allowed)
    ]

    assert known == []


def test_an_application_does_not_need_spark():
    """`pip install wakeroll` brings msgspec and a Kafka client, no JVM; three modules are of extras."""
    installed = {*sys.stdlib_module_names, "msgspec", "confluent_kafka", "wakeroll_model", "wakeroll"}
    extras = {"telemetry": "opentelemetry", "faststream": "faststream", "faststream_broker": "faststream"}
    optional = {path: extras[path.stem] for path in files_of("wakeroll") if path.stem in extras}
    others = [path for path in files_of("wakeroll") if path not in optional]

    assert strangers(others, installed) == []
    assert [strangers([path], installed | {package}) for path, package in optional.items()] == [[], [], []]
    assert [path for path in others if {f"wakeroll.{name}" for name in extras} & {*imports_of(path)}] == []


def test_nothing_points_back():
    """The pipeline knows the client, the client knows the model; never the other way round."""
    back = {
        "model": ("wakeroll", "wakeroll_pipeline", "bench"),
        "wakeroll": ("wakeroll_pipeline", "bench"),
        "pipeline": ("bench",),
    }
    found = [
        f"{name_of(path)}: {module}"
        for folder, forbidden in back.items()
        for path in files_of(folder)
        for module in imports_of(path)
        if module.partition(".")[0] in (*forbidden, "tests")
    ]

    assert found == []


@pytest.mark.parametrize("leaf", LEAVES)
def test_sources_operators_and_sinks_do_not_know_each_other(leaf):
    """Each can be read, tested and replaced alone."""
    others = [f"wakeroll_pipeline.{other}" for other in (*LEAVES, "jobs", "cli") if other != leaf]
    found = [
        f"{name_of(path)}: {module}"
        for path in files_of(f"pipeline/wakeroll_pipeline/{leaf}")
        for module in imports_of(path)
        if any(module == other or module.startswith(f"{other}.") for other in others)
    ]

    assert found == []


def test_production_code_does_not_import_the_local_system():
    """The embedded broker and the demo are for one machine; one module of the command line may start them."""
    found = [
        f"{name_of(path)}: {module}"
        for path in files_of("model", "wakeroll", "pipeline")
        if "pipeline/wakeroll_pipeline/local/" not in name_of(path)
        and name_of(path) != "pipeline/wakeroll_pipeline/cli/local_commands.py"
        for module in imports_of(path)
        if module == "wakeroll_pipeline.local" or module.startswith("wakeroll_pipeline.local.")
    ]

    assert found == []


def test_the_folders_of_the_pipeline_have_no_cycle():
    """One folder can be read without all the others."""
    after: dict[str, set[str]] = {}
    for path in files_of("pipeline"):
        folder = path.relative_to(ROOT / "pipeline" / "wakeroll_pipeline").parts[0]
        named = {module.split(".")[1] for module in imports_of(path) if module.startswith("wakeroll_pipeline.")}
        after.setdefault(folder, set()).update(named - {folder})

    def reached(start: str) -> set[str]:
        found, todo = set[str](), [start]
        while todo:
            todo += (new := after.get(todo.pop(), set()) - found)
            found |= new
        return found

    assert [folder for folder in sorted(after) if folder in reached(folder)] == []


def test_no_two_modules_have_the_same_name():
    """A name in a message, or in a question, leads to one file."""
    names = Counter(path.stem for path in files_of(*OURS, "tests/support") if path.stem not in ("__init__", "__main__"))

    assert [name for name, times in names.items() if times > 1] == []


def test_nothing_lies_loose_in_the_pipeline_but_what_all_share():
    """A folder is a subject; a module in it is found by its name."""
    loose = sorted(path.name for path in (ROOT / "pipeline" / "wakeroll_pipeline").glob("*.py"))

    assert loose == ["__init__.py", "failure_log.py", "prerequisites.py", "settings.py"]


def test_test_folders_are_no_packages():
    """With an `__init__.py` pytest would import one folder's tests under another's name."""
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}

    assert [name_of(folder) for folder in sorted(folders) if (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("folder", ["tests", "bench", "pipeline", "wakeroll", "model"])
def test_no_module_changes_where_modules_are_found(folder):
    """What tests share is a package, `tests.support`: a module has one name, and no list of folders is kept."""
    own = {Path(__file__), ROOT / "wakeroll/last_will/executor.py"}  # that program begins without any
    found = [name_of(path) for path in files_of(folder) if path not in own and "sys.path" in path.read_text()]

    assert found == []


def test_no_file_names_somebodys_machine():
    """What runs here must run in a fresh clone."""
    endings = {".py", ".md", ".toml", ".txt", ".sql", ".yml", ".yaml", ".xml", ".sh", ".cfg", ".json", ""}
    folders = (*OURS, "tests", "docs", "dbt_like_sql", "deploy", "checkpoints", ".ci")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in endings]
    paths += [path for path in ROOT.iterdir() if path.suffix in endings and path.name != ".git"]  # of a worktree
    found = [
        f"{name_of(path)}: {match[0]}"
        for path in paths
        if path.is_file() and path != Path(__file__)
        for match in [MACHINE_PATH.search(path.read_text(encoding="utf-8", errors="replace"))]
        if match
    ]

    assert found == []


# --- that these tests would find what they look for ---


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("import os.path", ["os.path"]),
        ("from time import time", ["time.time", "time"]),
        ("def f():\n    import random", ["random"]),
        ("from . import sinks", ["wakeroll_pipeline.sinks", "wakeroll_pipeline"]),
        ("from .sinks import arrow_sink", ["wakeroll_pipeline.sinks.arrow_sink", "wakeroll_pipeline.sinks"]),
        ("from wakeroll_pipeline import sinks", ["wakeroll_pipeline.sinks", "wakeroll_pipeline"]),
    ],
)
def test_an_import_is_found_however_it_is_written(tmp_path, line, expected):
    """A rule that overlooks a way to write it is none."""
    folder = tmp_path / "pipeline" / "wakeroll_pipeline"
    folder.mkdir(parents=True)
    path = folder / "module.py"
    path.write_text(line, encoding="utf-8")

    assert list(imports_of(path, tmp_path)) == expected


def test_the_folders_that_are_read_exist():
    """A renamed folder would make its rule true of nothing."""
    folders = [
        "model",
        "model/wakeroll_model/strategies",
        "wakeroll",
        "pipeline",
        *(f"pipeline/wakeroll_pipeline/{leaf}" for leaf in LEAVES),
    ]

    assert [folder for folder in folders if not files_of(folder)] == []
