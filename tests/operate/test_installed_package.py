"""The package in an environment of its own, outside the checkout: its extras, its JARs, and the demo."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder

from tests.support.running_processes import ROOT, run_process

pytestmark = pytest.mark.operate

PATIENCE_S = 1_800.0
OURS = ("WAKEROLL_JARS", "PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME", "MAKEFLAGS")
"""Variables of this environment that another one must not inherit."""
PAGE = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built by pip from the sdist."""
    folder = tmp_path_factory.mktemp("wheel")
    [sources] = SdistBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    built = run_process([sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", folder, sources], folder=folder)
    assert built.returncode == 0, built.stderr
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Callable[..., "subprocess.CompletedProcess[str]"]]:
    """Run a command like a user with an empty home, an empty cache and an empty environment, outside the checkout."""
    home = tmp_path / "home of a user"
    home.mkdir()
    venv.create(tmp_path / "env", with_pip=True)
    path = os.pathsep.join([str(tmp_path / "env" / "bin"), str(home / ".local" / "bin"), os.environ["PATH"]])

    def user(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {"HOME": str(home), "XDG_CACHE_HOME": "", "PATH": path, "COLUMNS": "120"}
        return run_process(words, folder=home, without=OURS, patience_s=PATIENCE_S, **{**kept, **environment})

    yield user
    shutil.rmtree(tmp_path, ignore_errors=True)  # a gigabyte


def commands(heading: str) -> list[list[str]]:
    """Return the commands of the page's section, without comments."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    block = "".join(re.findall(r"```sh\n(.*?)```", section, flags=re.DOTALL))
    return [words for line in block.splitlines() if (words := shlex.split(line, comments=True))]


def from_wheel(words: list[str], wheel: Path) -> list[str]:
    """Replace the package's name by the wheel: the index does not have this version."""
    name = re.compile(r"wakeroll(\[\S+\])")
    return [f"wakeroll{found[1]} @ {wheel.as_uri()}" if (found := name.fullmatch(word)) else word for word in words]


def megabytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) // 1_000_000


def test_the_sdk_alone_is_small(user, wheel: Path, tmp_path: Path, tell):
    """An application that consumes installs neither a database nor Spark; the command says what it needs."""
    done = user("pip", "install", "--no-compile", wheel)
    assert done.returncode == 0, done.stderr
    used = user("python", "-c", "import wakeroll.testing; from wakeroll import Admin, Consumer, Producer")
    command = user("wakeroll", "groups")

    assert (used.returncode, used.stderr) == (0, "")
    assert (command.returncode, command.stderr) == (
        1,
        "wakeroll: the command needs the extra `ask`; install it with: pip install 'wakeroll[ask]'\n",
    )
    [site] = (tmp_path / "env").glob("lib/python3*/site-packages")
    packages = {path.name.partition("-")[0] for path in site.glob("*.dist-info")} - {"pip", "setuptools"}
    size = sum(
        megabytes(site / name)
        for name in ("wakeroll", "wakeroll_model", "wakeroll_pipeline", "msgspec", "confluent_kafka")
    )
    tell(f"the SDK takes {size} MB, of which librdkafka takes {megabytes(site / 'confluent_kafka.libs')} MB more")
    assert packages == {"wakeroll", "msgspec", "confluent_kafka"}


@pytest.mark.spark
@pytest.mark.e2e
def test_the_demo_runs_from_the_installed_package(user, wheel: Path, tmp_path: Path, tell):
    """The page's commands as they stand; before the JARs are fetched, the error names the command that does it."""
    install, *others = commands("A first run")
    done = user(*from_wheel(install, wheel))
    assert done.returncode == 0, done.stderr
    cache = tmp_path / "home of a user" / ".cache" / "wakeroll"

    early = user("wakeroll", "demo")
    assert early.returncode == 1, early.stderr
    assert early.stderr.endswith("; run `wakeroll jars spark broker`.\n"), early.stderr
    assert early.stderr.startswith(f"wakeroll: {cache}/jars-"), early.stderr
    for words in others:
        done = user(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    assert others[-1] == ["wakeroll", "demo"]
    counts = re.findall(r"│ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │ +(\d+) │", done.stdout)
    tell(f"environment: {megabytes(tmp_path / 'env')} MB, JARs: {megabytes(cache)} MB")
    assert [path.name.partition("-")[0] for path in cache.iterdir()] == ["jars"]
    produced, consumed, lost, double, _, repeated = map(int, counts[0])
    assert produced == consumed > 1_000
    assert (lost, double, repeated) == (0, 0, 0)
    asked = user("wakeroll", "describe", "billing", "--home", ".wakeroll/demo")
    assert asked.returncode == 0, asked.stderr


@pytest.mark.parametrize("tool", ["uv", "pipx"])
def test_a_tool_installs_the_command(user, wheel: Path, tool: str):
    """Without an environment of one's own; the page's commands as they stand."""
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}: pip install {tool}")
    [words] = [words for words in commands("As a tool") if words[0] == tool]
    done = user(*from_wheel(words, wheel))
    assert done.returncode == 0, done.stderr

    helped = user("wakeroll", "--help")
    named = user("wakeroll", "jars", "nonsense")

    assert helped.returncode == 0, helped.stderr
    assert (named.returncode, named.stderr[:44]) == (2, "wakeroll: no JARs are named 'nonsense'; expe")
