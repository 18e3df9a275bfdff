"""Rows that decisions make are ordered by (era, seq): every query of the project is read, none is run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

GENERATED = "dbt_like_sql/macros/ledger_views.sql"
"""Made of the other files, by `wakeroll_pipeline.questions.marts.views_macro`."""

ORDERED = re.compile(r"(?P<call>\b(?:max_by|min_by|orderBy|sort|sortWithinPartitions)\()|\border\s+by\s", re.IGNORECASE)
"""Where a list of keys begins: in SQL, and in the calls of Spark and Polars."""
STOP = re.compile(r"\b(?:rows|range|limit)\b|[;\"`]|\n\s*\n", re.IGNORECASE)
"""Where the keys of an ORDER BY end, if not at the bracket that closes it."""
NAME = re.compile(r"\w+(?=\W*$)")
"""Of `decided.seq`, `"seq"` and `f.desc("seq")`: seq."""
TIME = re.compile(r"(?:^|_)(?:at|ms)$")
"""A column of log times."""

BY_TIME = {
    # What is said of a queue's end stands in records of several partitions; these have no order but their times.
    ("dbt_like_sql/models/marts/consumer_lag.sql", "seen_at"),
    ("pipeline/wakeroll_pipeline/ledger/views/lag.sql", "at_ms"),
    ("pipeline/wakeroll_pipeline/live/ledger_reader.py", "at_ms"),
    ("pipeline/wakeroll_pipeline/ledger/views/repeats.sql", "until_ms"),
    ("dbt_like_sql/models/marts/queue_health.sql", "known_at"),
    # Durations, for their percentiles.
    ("dbt_like_sql/models/marts/wake_latency.sql", "held_ms"),
    ("dbt_like_sql/models/marts/wake_latency.sql", "arrival_to_wake_ms"),
    # Lists for people, of several groups.
    ("dbt_like_sql/analyses/09_who_is_at_odds.sql", "began_at"),
    ("dbt_like_sql/analyses/10_were_there_storms.sql", "began_at"),
    ("docs/questions.md", "began_at"),
    ("dbt_like_sql/analyses/15_which_storm_was_a_deployment.sql", "began_at"),
    ("dbt_like_sql/analyses/20_which_deployments_were_there.sql", "began_at"),
    ("dbt_like_sql/analyses/17_how_many_were_repeated.sql", "handed_over_at"),
    ("docs/questions.md", "handed_over_at"),
    # Commits and reports of ends: the lag between two of them is as long as their times say.
    ("dbt_like_sql/analyses/14_how_large_was_the_lag.sql", "at_ms"),
    ("pipeline/wakeroll_pipeline/ledger/daily_facts.py", "at_ms"),
    ("docs/questions.md", "at_ms"),
    # A sample of the newest decisions of several shards, which have no order but their times.
    ("pipeline/wakeroll_pipeline/live/ledger_reader.py", "published_ms"),
    # A running maximum, which never steps back within a shard.
    ("pipeline/wakeroll_pipeline/questions/happenings.py", "placed_ms"),
    ("docs/operations.md", "at_ms"),
}
"""File and column, where the times themselves are asked for."""


def sources() -> Iterator[tuple[str, str]]:
    """Yield name and text of every file that may ask the ledger; of a page its programs alone."""
    for folder, pattern in (("pipeline", "*.sql"), ("dbt_like_sql", "*.sql"), ("pipeline", "*.py"), ("bench", "*.py")):
        for path in sorted((ROOT / folder).rglob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if name != GENERATED:
                yield name, path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        yield path.relative_to(ROOT).as_posix(), programs_of(path.read_text(encoding="utf-8"))


def programs_of(page: str) -> str:
    """Return a page with its programs alone; each line stays where it is."""
    lines, inside = [], False
    for line in page.splitlines():
        begins = line.startswith(("```sql", "```sh", "```python"))
        inside = begins or (inside and not line.startswith("```"))
        lines.append(line if inside and not begins else "")
    return "\n".join(lines)


def split(text: str) -> tuple[list[str], int]:
    """Split at the commas until the bracket that closes this text, or its end; return the parts and where that is."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        if letter == ")" and depth == 0:
            return [*parts, text[begin:place]], place
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[begin:place])
            begin = place + 1
    return [*parts, text[begin:]], len(text)


def keys_of(expression: str) -> Iterator[str]:
    """Yield the columns of one key: of a struct, or of a row such as `(era, seq)`, each of its own."""
    struct = re.search(r"(?:\bstruct|(?<!\w))\((.*)\)", expression, flags=re.DOTALL | re.IGNORECASE)
    if struct:
        for part in split(struct[1])[0]:
            yield from keys_of(part)
        return
    if "split_part" in expression:
        yield "era"
        return
    plain = re.sub(r"\b(?:asc|desc|nulls|first|last|end)\b(?!\()", "", expression, flags=re.IGNORECASE)
    found = NAME.search(plain)
    yield found[0] if found else plain


def lists_of(text: str) -> Iterator[tuple[int, list[str], bool]]:
    """Yield each list of keys: its line, its columns, and whether it is within one shard and era."""
    for match in ORDERED.finditer(text):
        rest = text[match.end() :]
        stop = None if match["call"] else STOP.search(rest)
        parts, _ = split(rest[: stop.start()] if stop else rest)
        if match["call"] and match["call"].startswith(("max_by", "min_by")):
            parts = parts[1:]
        columns = [column for part in parts for column in keys_of(part)]
        window = text[: match.start()].rpartition("partition by")[2]
        yield (
            text.count("\n", 0, match.start()) + 1,
            columns,
            ")" not in window and "shard" in re.findall(r"\w+", window),
        )


def wrong(name: str, columns: list[str], in_shard: bool) -> str | None:
    """Say what is wrong with a list of keys; None if nothing is."""
    if "shard" in columns:
        return "`shard` is text, in which era 10 stands before era 9: order by era, seq"
    if "seq" in columns and not in_shard and columns[: columns.index("seq")][-1:] != ["era"]:
        return "`seq` begins at 1 in each era: order by era, seq"
    for column in columns:
        if TIME.search(column) and (name, column) not in BY_TIME:
            return f"`{column}` is a log time, which may step back: order by era, seq; if times are meant, see BY_TIME"
    return None


def test_what_is_latest_is_told_by_era_and_seq():
    """By anything else, a queue was said to be owned by a client that had left, and retention deleted the last row."""
    found = [
        f"{name}:{line}: {reason}"
        for name, text in sources()
        for line, columns, in_shard in lists_of(text)
        if (reason := wrong(name, columns, in_shard))
    ]

    assert found == []


def test_each_exception_is_needed():
    """One that is left over would let a mistake through."""
    used = {(name, column) for name, text in sources() for _, columns, _ in lists_of(text) for column in columns}

    assert used >= BY_TIME


# --- that these tests would find what they look for ---


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("row_number() over (partition by a order by at_ms desc, shard desc, seq desc)", ["at_ms", "shard", "seq"]),
        ("max_by(mode, struct(at_ms, shard, seq)) as mode", ["at_ms", "shard", "seq"]),
        ("max_by(owner, case when is_handover then struct(era, seq) end) over (", ["era", "seq"]),
        ("select * from assignments\norder by seq", ["seq"]),
        ("order by one.era desc nulls last, one.seq desc nulls last limit 3", ["era", "seq"]),
        ('rows.orderBy(f.desc("at_ms"), f.desc("shard"), f.desc("seq")).first()', ["at_ms", "shard", "seq"]),
        ('f.max_by("body", f.struct("era", "offset")).alias("x")', ["era", "offset"]),
        ('.sort("from_ms", "seq")', ["from_ms", "seq"]),
        ("order by try_cast(split_part(shard, '.', -1) as int), seq", ["era", "seq"]),
        ('text = "order by from_ms, seq"', ["from_ms", "seq"]),
    ],
)  # fmt: skip
def test_the_keys_of_an_order_are_found(query, columns):
    assert [found for _, found, _ in lists_of(query)] == [columns]


def test_of_a_page_the_programs_are_read():
    page = "# Order by seq\n```sql\nselect 1\norder by seq\n```\norder by seq\n"

    assert [line for line, *_ in lists_of(programs_of(page))] == [4]


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("select 1 from t order by from_ms desc, era, seq", "from_ms"),
        ("select 1 from t order by shard, seq", "shard"),
        ("lead(x) over (partition by topic, queue_id order by seq)", "seq"),
        ("lead(x) over (partition by topic, shard order by seq)", None),
        ("select 1 from t order by group_id, era, seq", None),
        ("select 1 from t order by partition, offset", None),
    ],
)
def test_a_wrong_order_is_told(query, word):
    [(_, columns, in_shard)] = lists_of(query)
    told = wrong("some.sql", columns, in_shard)

    assert told is None if word is None else told.startswith(f"`{word}`")
