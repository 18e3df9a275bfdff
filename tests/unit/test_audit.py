"""`make audit`: the bill of materials names every JAR, and what a database answers is read."""

import importlib.util
import json
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SUMS = (ROOT / "pipeline" / "wakeroll_pipeline" / "spark" / "jar_lists" / "sha256sums").read_text()


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / "deploy" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_jar_is_a_component_with_name_version_and_hash(audit):
    bill = audit.with_jars({"bomFormat": "CycloneDX", "components": [{"name": "msgspec"}]}, SUMS)

    components = bill["components"][1:]
    assert bill["components"][0] == {"name": "msgspec"}
    assert len(components) == len(SUMS.splitlines())
    assert [one for one in components if not one["version"] or len(one["hashes"][0]["content"]) != 64] == []
    names = {(one["name"], one["version"]) for one in components}
    assert {("kafka-clients", "4.3.1"), ("kafka_2.13", "4.3.1"), ("zstd-jni", "1.5.6-10")} <= names


def test_vulnerabilities_are_listed_with_their_remedy(audit):
    answer = {
        "dependencies": [
            {"name": "good", "version": "1", "vulns": []},
            {"name": "bad", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1", "3"]}]},
            {"name": "odd", "version": "3", "skip_reason": "not on the index"},
            {"name": "worse", "version": "4", "vulns": [{"id": "GHSA-2", "fix_versions": []}]},
        ]
    }

    assert [str(one) for one in audit.read_findings(json.dumps(answer))] == [
        "bad 2: PYSEC-1, fixed in 2.1, 3",
        "worse 4: GHSA-2, no version fixes it",
    ]


def test_an_index_without_data_about_vulnerabilities_is_no_good_news(audit):
    """A mirror answers that it does not know any package: nothing was checked then."""
    unknown = {"name": "msgspec", "version": "1", "skip_reason": "msgspec is not found"}
    known = {"name": "good", "version": "1", "vulns": []}

    assert audit.count_checked(json.dumps({"dependencies": [unknown, known]})) == 1
    with pytest.raises(audit.NoDatabase, match="none of 1 packages was found; for example: msgspec is not found"):
        audit.count_checked(json.dumps({"dependencies": [unknown]}))


def test_without_an_answer_it_says_so(audit, tmp_path, monkeypatch):
    """A build without a network is not a vulnerable one."""
    tool = tmp_path / "pip-audit"
    tool.write_text("#!/bin/sh\necho 'cannot connect to the database' >&2\nexit 1\n")
    tool.chmod(0o755)
    python = Path(audit.sys.executable)
    monkeypatch.setattr(audit.sys, "executable", str(tmp_path / "python"))

    with pytest.raises(audit.NoDatabase, match="cannot connect to the database"):
        audit.query(python)


def test_the_bill_of_an_image_names_packages_jars_and_debians(audit, tmp_path, monkeypatch):
    """Scanners look components up by their package URLs; a JAR has one if Maven has noted in it what it is."""
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "msgspec-0.20.dist-info").mkdir(parents=True)
    (packages / "msgspec-0.20.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: msgspec\nVersion: 0.20\n"
    )
    for name, group in (("jackson-core-2.21.2", "com.fasterxml.jackson.core"), ("tink-1.20.0", None)):
        with zipfile.ZipFile(tmp_path / f"{name}.jar", "w") as jar:
            jar.writestr("META-INF/maven/org.other/shaded/pom.properties", "")
            if group:
                jar.writestr(f"META-INF/maven/{group}/{name.rpartition('-')[0]}/pom.properties", "")
    debian = [audit._component("deb/debian", "tini", "0.19.0-1", "?arch=amd64")]
    monkeypatch.setattr(audit, "_debian_packages", lambda: debian)

    bill = audit.image_bill(tmp_path)

    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert [one.get("purl") for one in bill["components"]] == [
        "pkg:pypi/msgspec@0.20",
        "pkg:maven/com.fasterxml.jackson.core/jackson-core@2.21.2",
        None,
        "pkg:deb/debian/tini@0.19.0-1?arch=amd64",
    ]
    assert all(one["bom-ref"] and one["name"] and one["version"] for one in bill["components"])
