"""Renders the overlays to `rendered/`, and copies the alert rules into the component `monitoring`.

python deploy/kubernetes/render.py

It needs kubectl. Tests validate the rendered files; each begins with the hash of its sources, so a test that has no
kubectl can tell whether they are current.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

import yaml

FOLDER = Path(__file__).parent
OVERLAYS = ("local-volume", "s3-replicas")
RULES = FOLDER.parent / "observability" / "wakeroll-alerts.yml"
ALERTS = FOLDER / "components" / "monitoring" / "alerts.yaml"


def rendered_file(overlay: str) -> Path:
    """Return the file with the rendered manifests of an overlay."""
    return FOLDER / "rendered" / f"{overlay}.yaml"


def digest(overlay: str) -> str:
    """Return the hash of all files from which an overlay is rendered."""
    hashed = hashlib.sha256()
    for folder in ("base", "components/common", f"overlays/{overlay}"):
        for path in sorted((FOLDER / folder).rglob("*")):
            if path.is_file():
                hashed.update(path.relative_to(FOLDER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return hashed.hexdigest()


def kustomized(folder: Path) -> str:
    """Return what kubectl renders from a folder.

    Raises:
        CalledProcessError: the folder is not valid.
    """
    return subprocess.run(["kubectl", "kustomize", folder], check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout


def alerts() -> str:
    """Return the alert rules as a PrometheusRule, the resource of the Prometheus operator."""
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "wakeroll"},
        "spec": yaml.safe_load(RULES.read_text(encoding="utf-8")),
    }
    head = f"# Made by {Path(__file__).name} from deploy/observability/{RULES.name}.\n"
    return head + yaml.safe_dump(resource, sort_keys=False, width=120)


def main() -> None:
    """Write all files."""
    ALERTS.write_text(alerts(), encoding="utf-8")
    for overlay in OVERLAYS:
        head = f"# Rendered by `make manifests` from overlays/{overlay}.  sha256 of the sources: {digest(overlay)}\n"
        rendered_file(overlay).write_text(head + kustomized(FOLDER / "overlays" / overlay), encoding="utf-8")
        sys.stdout.write(f"{rendered_file(overlay)}\n")


if __name__ == "__main__":
    main()
