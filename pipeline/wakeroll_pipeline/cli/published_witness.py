"""The part of `check` that reads in Kafka which lines of the hash chains the recorder has published."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wakeroll.errors import NotReachable
from wakeroll_pipeline.cli.output import Output
from wakeroll_pipeline.settings import Settings

if TYPE_CHECKING:
    from wakeroll_model.chain import Published
    from wakeroll_pipeline.questions.quality.rule import RuleResult


class Witness:
    """The published lines at the creation of this object, and the result of their rule."""

    def __init__(self, settings: Settings | None) -> None:
        """Read the records at the brokers of a deployment; None: no brokers are named, and there is no result.

        If no broker answers, or if they deny the right, the result contains that.
        """
        self._settings = settings
        self._published: Sequence[Published] | None = None
        self._problem = ""
        self.sentence = ""
        """Result of the comparison with the published lines; empty if there is none."""
        if settings is None:
            return
        from wakeroll_pipeline.kafka.published_lines import read_published

        try:
            self._published = read_published(settings.connection)
        except NotReachable as error:
            self._problem = str(error)

    def added_to(self, outcomes: "Sequence[RuleResult]") -> "Sequence[RuleResult]":
        """Return the results of the other rules with that of the published lines, after those that compare rows."""
        if self._settings is None:
            return outcomes
        from wakeroll_pipeline.questions.quality.published_check import RULE, check_published, sentence_of
        from wakeroll_pipeline.questions.quality.rule import RuleResult, inserted

        topic = self._settings.connection.topics.chain
        if self._problem:
            result = RuleResult(RULE, not_checked=self._problem)
        else:
            result = check_published(self._settings.warehouse, self._published, topic)
        self.sentence = sentence_of(result, self._published, topic)
        return inserted(outcomes, result)

    def print_to(self, out: Output) -> None:
        """Print the result of the published lines."""
        if self.sentence:
            out.print(self.sentence, soft_wrap=True, markup=False)
