"""Creates a VolumeSnapshot of a claim, waits until it can be used, and deletes the oldest ones of this claim.

It runs in a pod, and asks the API server by the token of its service account. It needs Python's standard library only.
A snapshot that cannot be used is never counted as a backup: then nothing is deleted, and the exit code is 1.
"""

import argparse
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LABEL = "wakeroll-backup-of"
"""Label of the snapshots that this script made, and may delete; its value is the name of the claim."""
_ANSWER_S = 30.0


class Failed(Exception):
    """The snapshot was not taken; the message has the reason."""


class Snapshots:
    """The snapshots of one claim."""

    def __init__(self, server: str, account: Path, claim: str) -> None:
        """Prepare.

        Args:
            server: URL of the API server.
            account: folder with the files `token`, `namespace` and `ca.crt`.
            claim: name of a PersistentVolumeClaim.
        """
        namespace = (account / "namespace").read_text().strip()
        self._account = account
        self._path = f"{server}/apis/snapshot.storage.k8s.io/v1/namespaces/{namespace}/volumesnapshots"
        self._tls = ssl.create_default_context(cafile=str(account / "ca.crt")) if server.startswith("https:") else None
        self._claim = claim

    def create(self, snapshot_class: str) -> str:
        """Create a snapshot; return its name."""
        spec: dict[str, Any] = {"source": {"persistentVolumeClaimName": self._claim}}
        if snapshot_class:
            spec["volumeSnapshotClassName"] = snapshot_class
        created = self._ask(
            "POST",
            "",
            {
                "apiVersion": "snapshot.storage.k8s.io/v1",
                "kind": "VolumeSnapshot",
                "metadata": {"generateName": f"{self._claim}-", "labels": {LABEL: self._claim}},
                "spec": spec,
            },
        )
        return str(created["metadata"]["name"])

    def wait(self, name: str, patience_s: float, poll_s: float) -> None:
        """Wait until a snapshot can be used.

        Raises:
            Failed: it cannot be used in time; it stays, for somebody to look at.
        """
        deadline_s = time.monotonic() + patience_s
        while True:
            status = self._ask("GET", f"/{name}").get("status") or {}
            if status.get("readyToUse"):
                return
            if time.monotonic() > deadline_s:
                reason = (status.get("error") or {}).get("message", "no reason is known")
                raise Failed(f"the snapshot {name} is not ready to use after {patience_s:g} s: {reason}")
            time.sleep(poll_s)

    def delete_oldest(self, keep: int) -> list[str]:
        """Delete all snapshots of the claim that can be used, except the newest `keep`; return their names."""
        found = self._ask("GET", f"?labelSelector={LABEL}%3D{self._claim}")["items"]
        ready = [one["metadata"] for one in found if (one.get("status") or {}).get("readyToUse")]
        ready.sort(key=lambda one: (one["creationTimestamp"], one["name"]))
        gone = [str(one["name"]) for one in ready[: max(len(ready) - keep, 0)]]
        for name in gone:
            self._ask("DELETE", f"/{name}")
        return gone

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        token = (self._account / "token").read_text().strip()  # it is renewed now and then
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._path + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S, context=self._tls) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:500]
            raise Failed(f"the API server answers {method} {path or '/'} with {error.code}: {said}") from None
        except OSError as error:
            raise Failed(f"the API server does not answer: {error}") from None


def main(arguments: list[str]) -> int:
    """Take one snapshot; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claim", required=True, help="name of the PersistentVolumeClaim")
    parser.add_argument("--keep", type=int, required=True, help="how many snapshots of the claim are kept, 1 or more")
    parser.add_argument("--snapshot-class", default="", help="VolumeSnapshotClass; default: that of the cluster")
    parser.add_argument("--patience", type=float, default=3600.0, help="longest wait for the snapshot (s; %(default)g)")
    parser.add_argument("--poll", type=float, default=5.0, help="time between two looks at it (s; %(default)g)")
    parser.add_argument("--account", type=Path, default=ACCOUNT, help="folder of the service account (%(default)s)")
    given = parser.parse_args(arguments)
    if given.keep < 1:
        parser.error("--keep must be 1 or more")
    default = f"https://{os.environ.get('KUBERNETES_SERVICE_HOST')}:{os.environ.get('KUBERNETES_SERVICE_PORT')}"
    snapshots = Snapshots(os.environ.get("KUBERNETES_SERVER", default), given.account, given.claim)
    try:
        name = snapshots.create(given.snapshot_class)
        snapshots.wait(name, given.patience, given.poll)
        gone = snapshots.delete_oldest(given.keep)
    except Failed as problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"{name} can be used; deleted: {', '.join(gone) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
