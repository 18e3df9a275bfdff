"""The bill of materials of an installation, and the known vulnerabilities of its Python packages: `make audit`.

The bill is a CycloneDX document with the Python packages of an environment and the JARs of wakeroll's `sha256sums`; it
needs no network. The vulnerabilities come from a public database. If that cannot be reached, this is reported, and is
an error only with --strict.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SHA256SUMS = ROOT / "pipeline" / "wakeroll_pipeline" / "spark" / "jar_lists" / "sha256sums"
PATIENCE_S = 300.0
"""Longest time for a query to the database (s)."""

_JAR = re.compile(r"(?P<name>.+?)-(?P<version>[0-9][^-]*(?:-[^-]+)?)\.jar")


class Finding(NamedTuple):
    """A known vulnerability of an installed package."""

    package: str
    version: str
    vulnerability: str
    fixed_in: str
    """Versions without it; empty if there is none."""

    def __str__(self) -> str:
        remedy = f"fixed in {self.fixed_in}" if self.fixed_in else "no version fixes it"
        return f"{self.package} {self.version}: {self.vulnerability}, {remedy}"


class NoDatabase(Exception):
    """The database of vulnerabilities cannot be reached; the message has the reason."""


def main() -> int:
    """Write the bill, query the database, and print the result; return 1 if there is a vulnerability."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, default=ROOT / ".venv" / "bin" / "python", help="of the environment")
    parser.add_argument("--bill", type=Path, default=ROOT / "dist" / "bom.json", help="file for the bill of materials")
    parser.add_argument("--strict", action="store_true", help="fail if the database cannot be reached")
    given = parser.parse_args()
    bill = with_jars(python_bill(given.python), SHA256SUMS.read_text(encoding="utf-8"))
    given.bill.parent.mkdir(parents=True, exist_ok=True)
    given.bill.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    print(f"{len(bill['components'])} components in {given.bill}")
    try:
        answer = query(given.python)
        checked = count_checked(answer)
    except NoDatabase as problem:
        print(f"the packages are not checked for vulnerabilities: {problem}")
        return int(given.strict)
    findings = read_findings(answer)
    for finding in findings:
        print(finding)
    print(f"{len(findings)} known vulnerabilities in {checked} Python packages; the JARs are not checked")
    return int(bool(findings))


def python_bill(python: Path) -> dict[str, Any]:
    """Return the CycloneDX document of the packages of an environment."""
    tool = Path(sys.executable).with_name("cyclonedx-py")
    command = [str(tool), "environment", "--output-format", "JSON", "--output-reproducible", str(python)]
    bill: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return bill


def with_jars(bill: dict[str, Any], sums: str) -> dict[str, Any]:
    """Add the JARs of lines like ``<SHA-256>  <folder>/<name>-<version>.jar`` to a document."""
    jars = [jar_component(*line.split()) for line in sums.splitlines() if line.strip()]
    return {**bill, "components": [*bill.get("components", []), *jars]}


def jar_component(digest: str, path: str) -> dict[str, Any]:
    """Return a JAR as a component; the name of its file has its version.

    >>> component = jar_component("ab12", "spark/jackson-core-2.21.2.jar")
    >>> component["name"], component["version"], component["bom-ref"]
    ('jackson-core', '2.21.2', 'jar:spark/jackson-core-2.21.2.jar')
    """
    named = _JAR.fullmatch(Path(path).name)
    name, version = (named["name"], named["version"]) if named else (Path(path).stem, "")
    return {
        "type": "library",
        "bom-ref": f"jar:{path}",
        "name": name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": digest}],
    }


def query(python: Path) -> str:
    """Return pip-audit's JSON about the packages of an environment.

    Raises:
        NoDatabase: it did not answer.
    """
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    tool = Path(sys.executable).with_name("pip-audit")
    command = [tool, "--path", packages, "--format", "json", "--progress-spinner", "off", "--skip-editable"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        raise NoDatabase(f"no answer within {PATIENCE_S:g} s") from None
    if not done.stdout.startswith("{"):  # its exit code is 1 for findings and for errors
        raise NoDatabase((done.stderr.strip().splitlines() or ["no answer"])[-1])
    return done.stdout


def count_checked(answer: str) -> int:
    """Return how many packages pip-audit found in the database.

    Raises:
        NoDatabase: it found none. A mirror of the package index may have no data about vulnerabilities.
    """
    packages = json.loads(answer)["dependencies"]
    checked = sum("skip_reason" not in package for package in packages)
    if not checked:
        reasons = sorted({package["skip_reason"] for package in packages})
        raise NoDatabase(f"none of {len(packages)} packages was found; for example: {(reasons or ['no packages'])[0]}")
    return checked


def read_findings(answer: str) -> list[Finding]:
    """Return the vulnerabilities in pip-audit's JSON, sorted."""
    return sorted(
        Finding(package["name"], package["version"], found["id"], ", ".join(found.get("fix_versions", [])))
        for package in json.loads(answer)["dependencies"]
        for found in package.get("vulns", [])
    )


if __name__ == "__main__":
    sys.exit(main())
