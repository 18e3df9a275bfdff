"""Wrong inputs at the command line: exit code 2, and one line that names the right value."""

import os
import re
import shlex
from pathlib import Path

import pytest

from tests.support.delta_tables import write_tables
from tests.support.ledgers import a_day

NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    write_tables(folder / "warehouse", a_day())
    return folder


WRONG = [
    ("dance", "No such command 'dance'"),
    ("descrbe billing", "Did you mean 'describe'?"),
    ("groups --verdit stalled", "--verdict"),
    ("groups --verdict broken", "verdict is 'broken'; it must be one of: attention, abandoned, stalled"),
    ("groups --sort size", "sort is 'size'; it must be one of: verdict, name"),
    ("groups biling", "no group 'biling'; did you mean billing?"),
    ("groups --home nowhere", "no tables in"),
    ("groups --config nowhere.toml", "cannot read the settings in nowhere.toml"),
    ("describe", "Missing argument 'GROUP'; usage: wakeroll describe [OPTIONS] GROUP"),
    ("describe biling", "no group 'biling'; did you mean billing?"),
    ("watch biling", "no group 'biling'; did you mean billing?"),
    ("lag biling", "no group 'biling'; did you mean billing?"),
    ("happened biling", "no group 'biling'; did you mean billing?"),
    ("happened --since yesterday", "'yesterday' is not a time; expected 20m ago, a time like 2026-07-01T03:00:00Z"),
    ("happened --since 5x", "'5x' is not a time; expected 20m ago, a time like"),
    ("happened --since 2023-11-14T22:15:00", "has no time zone"),
    ("happened --since 2h --until 3h", "it must not be after --until"),
    ("happened --follow --until 3h", "--follow has no end; leave out --until"),
    ("happened --until 2001-01-01T00:00:00Z", "the archived log has records from 2023-11-14T22:13:20"),
    ("explain billing", "wakeroll explain GROUP TOPIC-N"),
    ("explain --group billing orders-3", "wakeroll explain GROUP TOPIC-N"),
    ("explain biling orders-3", "no group 'biling'; did you mean billing?"),
    ("explain billing orders", "'orders' is not a queue; expected a topic and a number, like orders-3"),
    ("explain billing orders-99", "orders-99 never had an owner in billing; the group has queues of orders"),
    ("replay --engine dukdb", "'--engine': 'dukdb' is not one of 'duckdb', 'spark'; see `wakeroll replay --help`"),
    ("groups --at 2001-01-01T00:00:00Z", "is before the archived log, which begins at 2023-11-14T22:13:20"),
    ("state --at 20m --bootstrap localhost:1", "--at reads the tables; leave out --bootstrap"),
    ("replay --group biling", "no group 'biling'; did you mean billing?"),
    ("replay --from 1h --to 2h", "--from must be before --to"),
    ("what-if --group billing --strategy BEST", "no strategy 'BEST'; there are: "),
    ("what-if --group billing", "--strategy"),
    ("what-if --group billing --remove c9 ", "no client 'c9' in billing"),
    ("sql 'from rebalance'", "rebalances"),
    ("sql --format xml groups", "'table'"),
    ("marts --vars nonsense", "--vars is 'nonsense'; it must be a JSON object of variables"),
    ("marts --project nowhere", "it must be the folder of a dbt project"),
    ("check --table order", "no table or view 'order' has rules; it must be one of: assignments"),
    ("check --version 3", "--version needs --table and excludes --at; --table must be one of events"),
    ("check --docs x --no-docs", "--docs and --no-docs exclude each other"),
    ("reset-offsets billing", "use exactly one of --to-first, --to-last, --to-current, --to-offset"),
    ("reset-offsets billing --to-first --to-last", "2 targets are named; use exactly one of --to-first"),
    ("reset-offsets billing --to-first --execute --dry-run", "--execute and --dry-run exclude each other"),
    ("reset-offsets billing --to-first --queue orders", "expected a topic and a number, like orders-3"),
    ("reset-offsets billing --to-first", "no broker is named; use --bootstrap host:port"),
    (
        "reset-offsets billing --to-offset many",
        "'--to-offset': it must be a valid integer; see `wakeroll reset-offsets --help`",
    ),
    ("reset-offsets billing --shift-by far", "it must be a valid integer"),
    ("reset-offsets billing --by-duration soon", "'soon' is not a duration; write one like 90s, 10m, 2h or PT2H"),
    ("reset-offsets billing --from-file nowhere.csv", "cannot read the offsets in nowhere.csv"),
    ("reset-offsets billing --from-file x.csv --topic orders", "--from-file names its queues; leave out --topic"),
    ("configure billing --strategy BEST", "no strategy 'BEST'; there are: "),
    ("configure billing --strategy-params {", "--strategy-params is '{'; it must be a JSON object"),
    ("kick billing c1 --for soon", "like 90s, 10m or 2h"),
    ("kick billing c1 --for 1h --readmit", "--readmit and --for exclude each other"),
    ("delete-offsets billing", "name the topic with --topic, or one queue with --queue"),
    (
        "delete-offsets billing --topic orders --queue orders-3",
        "name the topic with --topic, or one queue with --queue",
    ),
    ("delete-offsets billing --queue orders", "expected a topic and a number, like orders-3"),
    ("delete-group", "Missing argument 'GROUP'; usage: wakeroll delete-group [OPTIONS] GROUP"),
    ("kick billing", "Missing argument 'CLIENT'; usage: wakeroll kick [OPTIONS] GROUP CLIENT"),
    ("dlq billing --show 1 --drop 2", "--show, --resend and --drop exclude each other"),
    ("dlq billing --limit 0", "it must be greater than or equal to 1"),
    ("upgrade --level 99", "this release offers levels 1 to"),
    ("reshard --partitions 1", "it must be greater than or equal to 2"),
    ("run --bootstrap localhost", "bootstrap is 'localhost'; it must be host:port"),
    (f"run --only dance --bootstrap {NOWHERE}", "--only is 'dance'; it must be one of: coordinate, record"),
    (f"observe --bootstrap {NOWHERE} --prefix %", "prefix is '%'; it must be 1 to 200 characters"),
    (f"doctor --bootstrap {NOWHERE} --kafka-config nowhere", "cannot read the Kafka settings in nowhere"),
    (f"groups --bootstrap {NOWHERE} --keys nowhere", "nowhere"),
    ("serve --deployment prod", "--deployment is 'prod'; it must be a name and a settings file, like prod=prod.toml"),
    (
        "serve --deployment 'p d=p.toml'",
        "--deployment has the name 'p d'; it must have 1 to 64 letters, digits and . _ -",
    ),
    ("serve --deployment ../x=p.toml", "--deployment has the name '../x'; it must have 1 to 64 letters"),
    ("serve --deployment a=nowhere.toml", "the deployment 'a': cannot read the settings in nowhere.toml"),
    ("serve --deployment a=empty.toml", "the deployment 'a': empty.toml names no broker; it must have a line like"),
    ("serve --deployment a=a.toml --deployment a=a.toml", "--deployment has the name 'a' twice"),
    ("serve --deployment a=a.toml --prefix x", "--prefix is for a page of one deployment; with --deployment"),
    ("serve --deployment a=a.toml --require-login", "the deployment 'a': --require-login needs a login"),
    ("up --metrics-port 99999", "metrics_port is 99999; it must be"),
    ("acls danser=User:x", "danser"),
    ("jars kafak", "kafak"),
]
MOMENT = r"\S+ is 20[-0-9]+T[:.0-9]+Z"
"""Line that says which moment a relative time is."""
DEPLOYED = {"up", "run", "jars", "acls", "dance", "descrbe", "serve"}
"""Commands that get no `--home` from this test."""


@pytest.mark.parametrize(("words", "sentence"), WRONG, ids=[words for words, _ in WRONG])
def test_a_wrong_input_is_one_line_that_names_the_right_value(home, wakeroll, monkeypatch, tmp_path, words, sentence):
    """At three in the morning, nobody reads a page of help to find a typo."""
    monkeypatch.chdir(tmp_path)
    Path("empty.toml").touch()
    Path("a.toml").write_text(f'bootstrap = "{NOWHERE}"\n')
    for name in os.environ:
        if name.startswith("WAKEROLL_"):
            monkeypatch.delenv(name)
    command = shlex.split(words)
    if command[0] not in DEPLOYED and "--home" not in command:
        command += ["--home", str(home)]
    code, said, complaint = wakeroll(*command)
    lines = [line for line in complaint.splitlines() if not re.fullmatch(MOMENT, line)]

    assert (code, said) == (2, "")
    assert len(lines) == 1, complaint
    assert lines[0].startswith("wakeroll: ")
    assert sentence in lines[0]
