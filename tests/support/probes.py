"""What a supervisor sees of a process: the answers of its port."""

from urllib.error import HTTPError
from urllib.request import urlopen


def probe(port: int, path: str) -> str:
    """Return the status and body of an answer, or the name of the error."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return f"{answer.status} {answer.read().decode()}"
    except HTTPError as error:
        return f"{error.code} {error.read().decode()}"
    except OSError as error:
        return type(error).__name__
