"""JSON Schemas of the answers of commands: see `wakeroll_pipeline.questions.json_schemas`."""

from collections.abc import Mapping
from typing import Any

import msgspec

from wakeroll_pipeline.cli.group_answers import DescribeAnswer, GroupsAnswer, LagAnswer, StateAnswer
from wakeroll_pipeline.cli.json_answers import (
    CheckAnswer,
    DeletedGroup,
    DeletedOffsets,
    DoctorAnswer,
    LettersAnswer,
    MartsAnswer,
    MemberReport,
    PausedGroup,
    PlanAnswer,
    RepairAnswer,
    ReshardAnswer,
)
from wakeroll_pipeline.notify.notification_forms import Document
from wakeroll_pipeline.questions.happenings import Happened
from wakeroll_pipeline.questions.json_schemas import titled
from wakeroll_pipeline.questions.what_if_answers import PredictionsAnswer

_ANSWERS: Mapping[str, tuple[type[msgspec.Struct], str]] = {
    "happened": (Happened, "`wakeroll happened --json`"),
    "groups": (GroupsAnswer, "`wakeroll groups --json`, and of `lag --json` about all groups"),
    "describe": (DescribeAnswer, "`wakeroll describe --json`"),
    "lag": (LagAnswer, "`wakeroll lag GROUP --json`"),
    "state": (StateAnswer, "`wakeroll state --json`"),
    "what-if": (PredictionsAnswer, "`wakeroll what-if --json`"),
    "doctor": (DoctorAnswer, "`wakeroll doctor --json`"),
    "dlq": (LettersAnswer, "`wakeroll dlq --json`"),
    "check": (CheckAnswer, "`wakeroll check --json`"),
    "marts": (MartsAnswer, "`wakeroll marts --json`"),
    "deleted_group": (DeletedGroup, "`wakeroll delete-group --json`"),
    "deleted_offsets": (DeletedOffsets, "`wakeroll delete-offsets --json`"),
    "inspect": (MemberReport, "`wakeroll inspect --json`"),
    "paused_group": (PausedGroup, "`wakeroll pause --json` and `resume --json`"),
    "repair": (RepairAnswer, "`wakeroll repair --json`"),
    "reshard": (ReshardAnswer, "`wakeroll reshard --json`"),
    "plan": (PlanAnswer, "`wakeroll reset-offsets --json`, `skip --json` and `import-offsets --json`"),
}


def answer_schemas() -> Mapping[str, dict[str, Any]]:
    """Return file name -> schema, for the answer of each command and for the requests of `serve` to webhooks."""
    answers = {
        f"{name}.json": titled(msgspec.json.schema(declared), f"The answer of {command}")
        for name, (declared, command) in _ANSWERS.items()
    }
    notification = titled(msgspec.json.schema(Document), "A request of `wakeroll serve --notify` to a webhook")
    return {**answers, "notification.json": notification}
