"""Commands that pause a group, and resume it.  They do not need Spark."""

from wakeroll_pipeline.cli.admin_connection import admin_of, awaited
from wakeroll_pipeline.cli.json_answers import PausedGroup
from wakeroll_pipeline.cli.options import AsJson, BrokerOptions, By, GroupName, Reason
from wakeroll_pipeline.cli.output import Output, write_document

out = Output(highlight=False)


def pause(
    deployment: BrokerOptions, group: GroupName, reason: Reason = "", by: By = None, as_json: AsJson = False
) -> None:
    """Pause a group: its members keep their queues, and deliver no message until `resume`.

    Running calls of handlers go on. It needs feature level 4.
    """
    with admin_of(deployment.settings(), signs=True) as admin, awaited(out):
        detail = admin.pause(group, reason=reason, by=by)
    _answer(group, detail, as_json, is_paused=True)


def resume(
    deployment: BrokerOptions, group: GroupName, reason: Reason = "", by: By = None, as_json: AsJson = False
) -> None:
    """Let the members of a paused group deliver messages again. It needs feature level 4."""
    with admin_of(deployment.settings(), signs=True) as admin, awaited(out):
        detail = admin.resume(group, reason=reason, by=by)
    _answer(group, detail, as_json, is_paused=False)


def _answer(group: str, detail: str, as_json: bool, *, is_paused: bool) -> None:
    if as_json:
        write_document(PausedGroup(group_id=group, is_paused=is_paused, detail=detail))
    else:
        out.print(f"{group} is {detail}", markup=False)
