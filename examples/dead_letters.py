"""The care of dead letters, as a script for an operator: list them, send most of them again, drop the hopeless ones.

Letters whose last error is a timeout are sent to the group again. Letters that cannot be parsed are saved in a file and
dropped. All others stay, for somebody to look at; `wakeroll dlq` has the same functions as commands.

    python examples/dead_letters.py localhost:9092 billing dropped.jsonl
"""

import json
import sys
from collections import Counter
from pathlib import Path

from wakeroll import DeadLetters

AGAIN = ("TimeoutError", "ConnectionError")
"""Errors that may not come again."""
HOPELESS = ("JSONDecodeError", "UnicodeDecodeError")
"""Errors that come again however often the message is delivered."""


def main(bootstrap: str, group_id: str, path: str) -> None:
    """Process all dead letters of a group once."""
    with DeadLetters(group_id, bootstrap) as letters, Path(path).open("a", encoding="utf-8") as file:
        again, hopeless, errors = [], [], Counter[str]()
        for letter in letters.open():
            error = letter.origin.error.partition(":")[0]
            errors[error] += 1
            if error in AGAIN:
                again.append(letter.number)
            elif error in HOPELESS:
                hopeless.append(letter.number)
                value = (letter.message.value() or b"").decode(errors="replace")
                saved = {"topic": letter.origin.topic, "offset": letter.origin.offset, "value": value, "error": error}
                file.write(json.dumps(saved) + "\n")
        file.flush()
        print("errors:", dict(errors.most_common()))
        print("sent again:", letters.resend(again))
        print("dropped:", letters.drop(hopeless))


if __name__ == "__main__":
    main(*sys.argv[1:])
