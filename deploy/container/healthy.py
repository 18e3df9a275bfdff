"""The health check of the image: exit with 0 if the process of this container answers /healthz with 200.

A process of `wakeroll run`, `observe` or `tap` listens on the port of its metrics, one of `serve` on 8420. Other ports
are arguments: `healthy.py 9000`.
"""

import os
import sys
import urllib.error
import urllib.request

SERVE_PORT = "8420"
TIMEOUT_S = 5.0


def main(ports: list[str]) -> int:
    """Print the answer of the first port that answers; return the exit code."""
    for port in ports or [os.environ.get("WAKEROLL_METRICS_PORT", "9464"), SERVE_PORT]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=TIMEOUT_S) as answer:
                print(answer.read().decode().strip())
                return 0
        except urllib.error.HTTPError as error:
            print(error.read().decode().strip())
            return 1
        except OSError:  # nobody listens on this port
            continue
    print("no port answers")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
