"""The work of a change: it calls `wakeroll.Admin`, which waits for brokers and coordinator, so it runs in a thread."""

from collections.abc import Mapping
from typing import Any

from wakeroll.admin import ANSWER_S, Admin
from wakeroll.reset import ResetPlan
from wakeroll_model.queue import Queue
from wakeroll_pipeline.serve.changes.change_jobs import Result
from wakeroll_pipeline.serve.changes.change_requests import KickRequest, ResetRequest
from wakeroll_pipeline.settings import Settings


class Work:
    """Makes plans and carries out changes; each call has its own connection, because `Admin` is for one thread."""

    def __init__(self, settings: Settings, timeout_s: float = ANSWER_S) -> None:
        """Prepare.

        Args:
            settings: settings of the deployment.
            timeout_s: longest wait for the coordinator (s).
        """
        self._settings = settings
        self._timeout_s = timeout_s

    def plan(self, group_id: str, request: ResetRequest) -> ResetPlan:
        """Return the plan of a reset; see `Admin.plan_reset` and `Admin.plan_skip`."""
        (topic, queue), where = request.only, request.where
        with self._admin() as admin:
            if isinstance(where, Queue):
                return admin.plan_skip(group_id, where)
            return admin.plan_reset(group_id, where, topic=topic, queue=queue)

    def reset(self, plan: ResetPlan, by: str) -> Result:
        """Carry out a plan; see `Admin.reset`."""
        with self._admin() as admin:
            outcome = admin.reset(plan, by=by, timeout=self._timeout_s)
        rows = [
            (str(queue), f"{decision.offset:,}", client_id or "no owner yet")
            for (queue, client_id), decision in sorted(outcome.offsets.items())
        ]
        whose = "of client" if outcome.is_broadcasting else "assigned again to"
        return Result(
            f"the offsets are reset, in epoch {outcome.rebalance.epoch}",
            tuple(outcome.rebalance.notes),
            ("queue", "offset", whose),
            rows,
        )

    def configure(self, group_id: str, settings: Mapping[str, Any], by: str) -> Result:
        """Change settings, or request a rebalance if none is named; see `Admin.configure`."""
        with self._admin() as admin:
            done = admin.configure(group_id, by=by, timeout=self._timeout_s, **settings)
        what = "the settings are changed" if settings else "the group is rebalanced"
        return Result(
            f"{what}, in epoch {done.epoch}: strategy {done.strategy or '-'}, members: {done.clients}, queues: "
            f"{done.queues}, moved: {done.moved}",
            tuple(done.notes),
        )

    def kick(self, group_id: str, request: KickRequest, by: str) -> Result:
        """Make a client leave; see `Admin.kick`."""
        with self._admin() as admin:
            done = admin.kick(
                group_id,
                request.client,
                keep_out_ms=request.keep_out_ms,
                reason=request.reason,
                by=by,
                timeout=self._timeout_s,
            )
        return Result(f"{request.client} {'has left' if done.is_gone else 'must leave'}: {done.detail}")

    def inspect(self, group_id: str, client_id: str, by: str) -> Result:
        """Request a report from a member; see `Admin.inspect`."""
        with self._admin() as admin:
            text = admin.inspect(group_id, client_id, by=by, timeout=self._timeout_s)
        return Result(f"{client_id} has answered", text=text)

    def readmit(self, group_id: str, client_id: str, by: str) -> Result:
        """Let a client join again; see `Admin.readmit`."""
        with self._admin() as admin:
            admin.readmit(group_id, client_id, by=by, timeout=self._timeout_s)
        return Result(f"{client_id} may join again")

    def pause(self, group_id: str, reason: str, by: str, *, resume: bool) -> Result:
        """Pause a group, or resume it; see `Admin.pause`."""
        with self._admin() as admin:
            change = admin.resume if resume else admin.pause
            detail = change(group_id, reason=reason, by=by, timeout=self._timeout_s)
        return Result(f"the group is {detail}")

    def delete_group(self, group_id: str, reason: str, by: str) -> Result:
        """Delete a group without members; see `Admin.delete_group`."""
        with self._admin() as admin:
            detail = admin.delete_group(group_id, reason=reason, by=by, timeout=self._timeout_s)
        return Result(f"the group is {detail}")

    def _admin(self) -> Admin:
        connection = self._settings.connection
        return Admin(
            connection.bootstrap,
            kafka_config=connection.config,
            prefix=connection.topics.prefix,
            keys=self._settings.keys,
        )
