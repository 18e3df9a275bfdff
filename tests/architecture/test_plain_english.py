"""Plain technical English: words and sentence forms that readers stumbled over do not come back.

The rules hold for the documentation and for docstrings and comments of shipped code.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
CODE = ("model", "pipeline", "wakeroll")
GENERATED = {"docs/performance.md"}
"""Pages whose sentences stand in `bench/`."""

PROGRAM = (
    r"(?:coordinator|shard|observer|group|broker|log|record|decision|heartbeat|event|table|job|query|client|member|"
    r"assignment|route|tick|process|consumer|producer|topic|partition|queue|snapshot|checkpoint|Kafka|Spark|Delta|"
    r"command|test|page|file|column|row|view|message|instance|application|program|it)"
)
PERSON_VERB = r"(?:says|said|tells|told|asks|asked|hears|heard|thinks|wants to know)"


class Rule(NamedTuple):
    """A form to avoid, and what to write instead."""

    pattern: str
    instead: str


RULES = [
    Rule(r"\banew\b", "again, new"),
    Rule(r"\bbut for\b", "except"),
    Rule(r"\bin vain\b", "without success; without effect"),
    Rule(r"\bbe it\b", "whether"),
    Rule(r"\bof then\b", "of that time"),
    Rule(r"\ball the same\b", "still, nevertheless"),
    Rule(r"\bwish(es)?\b", "preferences"),
    Rule(r"\bat odds\b", "conflict"),
    Rule(r"\bask(s|ed|ing)? (\w+ )?back\b", "revoke"),
    Rule(r"\b(a|the|of|each|every|one|its) giving\b|\bgivings\b", "assignment"),
    Rule(r"\blast word\b", "latest record"),
    Rule(
        r"\b(a|an|one) \w+ an? "
        r"(client|member|line|row|group|topic|partition|shard|queue|batch|second|minute|key|table)\b",
        "one row per client",
    ),
    Rule(
        r"(?:^|(?<=[.:;] ))(Who|Whoever|Whom|Whose|That|What|Whatever)\b[^.?]*(\.|$)",
        "begin with the subject's name",
    ),
    Rule(rf"\b{PROGRAM}s? {PERSON_VERB}\b", "emits, reports, receives, sends, shows, requests"),
    Rule(r"\b(a|of|one|each|its|the|new|former|live|old|ended) (life|lives)\b", "instance, incarnation"),
    Rule(r"\b(deaf|ears?|dark) (member|observer|client|instance)s?\b", "a member that does not receive"),
    Rule(r"\bcame of\b|\bcomes of\b|\bwhat (becomes|became)\b", "result, outcome"),
    Rule(r"\bnobody (tells|says|asks)\b", "is not known; is not reported"),
]


class Text(NamedTuple):
    """A paragraph of prose and where it stands."""

    path: str
    line: int
    prose: str


@cache
def prose() -> tuple[Text, ...]:
    """Every paragraph that a reader meets, without code; read once for all rules."""
    return tuple(_prose())


def _prose() -> Iterator[Text]:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "model").glob("*.md")]
    for page in sorted(pages):
        path = page.relative_to(ROOT).as_posix()
        if path not in GENERATED:
            yield from _paragraphs(path, 1, re.sub(r"```.*?```", _blank, page.read_text(), flags=re.DOTALL))
    for folder in CODE:
        for module in sorted((ROOT / folder).rglob("*.py")):
            yield from _in_code(module.relative_to(ROOT).as_posix(), module.read_text())


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "", match[0])


def _in_code(path: str, source: str) -> Iterator[Text]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from _paragraphs(path, node.lineno, node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and "noqa" not in token.string and "type:" not in token.string:
            yield Text(path, token.start[0], token.string.lstrip("# "))


def _paragraphs(path: str, first: int, text: str) -> Iterator[Text]:
    """Split at empty lines, list items and table rows; what stands in backticks or quotes is not prose."""
    start, lines = first, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], first):
        begins = re.match(r"\s*([-*|>#]|\d+\.|$|>>>|\w+: )", line)
        if begins and lines:
            yield Text(path, start, _plain(" ".join(lines)))
            lines = []
        if not lines:
            start = number
        if line.strip() and not line.lstrip().startswith(">>>"):
            lines.append(line.strip().lstrip("-*|># "))


def _plain(paragraph: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"``[^`]*``|`[^`]*`|\"[^\"]*\"", "…", paragraph))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.instead)
def test_prose_avoids(rule: Rule):
    """Each finding names the place, the words and what to write instead."""
    assert list(_findings([rule])) == []


def _findings(rules: list[Rule]) -> Iterator[str]:
    for text in prose():
        for rule in rules:
            for match in re.finditer(rule.pattern, text.prose):
                if not match[0].rstrip().endswith("?"):
                    yield f"{text.path}:{text.line}: {match[0]!r}; write: {rule.instead}"


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (0, "The target is computed anew."),
        (11, "It has a row a client."),
        (12, "Nothing else. Who is silent for longer is out."),
        (13, "The observer tells where a queue ends."),
    ],
)
def test_a_rule_finds_what_it_forbids(rule: int, sentence: str):
    """A pattern that matches nothing would keep nobody from anything."""
    assert re.search(RULES[rule].pattern, sentence)
