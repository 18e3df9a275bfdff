"""The bill of materials of an installation, and the known vulnerabilities of its Python packages: `make audit`.

The bill is a CycloneDX document with the Python packages of an environment and the JARs of wakeroll's `sha256sums`; it
needs no network. The vulnerabilities come from a public database. If that cannot be reached, this is reported, and is
an error only with --strict.

With --image, the bill is that of the container image in which this runs, and nothing is queried: its Python packages,
all JARs below the folder of its environment, its Java, and Debian's packages.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distributions
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
    parser.add_argument("--image", type=Path, help="only write the bill of an image with this environment")
    given = parser.parse_args()
    if given.image:
        bill = image_bill(given.image)
    else:
        bill = with_jars(python_bill(given.python), SHA256SUMS.read_text(encoding="utf-8"))
    given.bill.parent.mkdir(parents=True, exist_ok=True)
    given.bill.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    print(f"{len(bill['components'])} components in {given.bill}")
    if given.image:
        return 0
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


def image_bill(environment: Path) -> dict[str, Any]:
    """Return the CycloneDX document of an image whose Python environment is this folder, sorted by kind and name."""
    [packages] = environment.glob("lib/python3*/site-packages")
    python = [_component("pypi", one.name.lower(), one.version) for one in distributions(path=[str(packages)])]
    jars = [_component_of_jar(jar) for jar in sorted(environment.rglob("*.jar"))]
    components = [*sorted(python, key=lambda one: str(one["name"])), *jars, *_java(), *_debian_packages()]
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}


def _component(kind: str, name: str, version: str, more: str = "") -> dict[str, Any]:
    """Return a component with its package URL, by which scanners look it up; `more`: what follows the version in it."""
    url = f"pkg:{kind}/{name}@{version}{more}"
    return {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}


def _component_of_jar(jar: Path) -> dict[str, Any]:
    """Return a JAR as a component; with its package URL if Maven has noted in it what it is."""
    component = jar_component(hashlib.sha256(jar.read_bytes()).hexdigest(), str(jar))
    with zipfile.ZipFile(jar) as archive:
        for entry in archive.namelist():
            _, _, inside = entry.partition("META-INF/maven/")
            match inside.split("/"):
                case [group, name, "pom.properties"] if name == component["name"]:
                    component["purl"] = f"pkg:maven/{group}/{name}@{component['version']}"
    return component


def _java() -> Iterator[dict[str, Any]]:
    """Yield the Java of the image, if it has one."""
    release = Path("/opt/java/release")
    if release.exists():
        named = re.search(r'^JAVA_VERSION="(.+)"$', release.read_text(encoding="utf-8"), re.MULTILINE)
        yield _component("generic", "openjdk", named[1] if named else "")


def _debian_packages() -> list[dict[str, Any]]:
    """Return the installed packages of Debian."""
    query = ["dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package} ${Version} ${Architecture}\n"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    installed = (line.split()[1:] for line in lines if line.startswith("installed "))
    return [_component("deb/debian", name, version, f"?arch={arch}") for name, version, arch in installed]


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
