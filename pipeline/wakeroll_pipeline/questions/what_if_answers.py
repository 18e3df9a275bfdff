"""Predictions of `wakeroll_model.what_if` in words and as a document, for the command and for the web page."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from wakeroll.errors import InvalidUsage
from wakeroll.expectations import problem_in
from wakeroll_model.events import Configure
from wakeroll_model.strategies import StrategyError, find
from wakeroll_model.what_if import Prediction, Situation, Variation


def alternatives(change: Variation, strategies: Sequence[str]) -> list[Variation]:
    """Return one change per strategy; without strategies, the change alone.

    Raises:
        InvalidUsage: there is no such strategy, or a setting is not valid; the message names the valid ones.
    """
    if problem := problem_in(change.settings, Configure):
        raise InvalidUsage(problem)
    for strategy in strategies:
        try:
            find(strategy)
        except StrategyError as error:
            raise InvalidUsage(str(error)) from None
    return [structs.replace(change, settings={**change.settings, "strategy": one}) for one in strategies] or [change]


def topic_queues(text: str, name: str) -> tuple[str, int]:
    """Parse TOPIC=N.

    Args:
        text: text such as ``orders=12``.
        name: name of the option or field, for the error.

    Raises:
        InvalidUsage: the text has another form.
    """
    topic, _, count = text.rpartition("=")
    if not topic or not count.isdecimal() or len(count) > 5:
        raise InvalidUsage(f"{name} is {text!r}; it must be TOPIC=N, such as orders=12")
    return topic, int(count)


def words_of(change: Variation) -> str:
    """Return the title of an alternative: its changes."""
    named = sorted(change.settings.items(), key=lambda one: one[0] != "strategy")
    words = [f"{name} {value}" for name, value in named if name != "slices"]
    words += [f"{topic} in {number} slices" for topic, number in change.settings.get("slices", {}).items()]
    words += [f"{change.add} more"] if change.add else []
    words += [f"without {client_id}" for client_id in change.remove]
    words += [f"{topic} with {count} queues" for topic, count in change.queues.items()]
    return ", ".join(words)


def readers_in_words(situation: Situation) -> str:
    """Return how many members read a partition; empty if no partition is cut into slices."""
    if all(queue.slices == 1 for queue in (*situation.owners, *situation.unowned)):
        return ""
    most = max(situation.readers.values(), default=0)
    return f"{situation.amplification:.1f} members read a partition, at most {most}"


def not_known(group_id: str) -> str:
    """Return the sentence about a group whose state is still being restored from the log."""
    return (
        f"the state of group {group_id!r} at the beginning of its era is not known, so nothing can be predicted until "
        "the next snapshot"
    )


def notes_of(answer: Prediction) -> list[str]:
    """Return sentences about facts of a prediction that its numbers do not show."""
    notes = list(answer.notes)
    if answer.unassigned:
        reasons = sorted({one.reason for one in answer.unassigned})
        notes.append(f"{answer.unassigned_count} queues have no owner: {'; '.join(reasons)}")
    if not answer.is_calm:
        notes.append("the group did not settle; this is the situation after ten simulated minutes")
    return notes


class SituationRow(Struct, frozen=True, kw_only=True):
    """A group at a moment; queues are named as in the tables, such as ``orders-3``."""

    epoch: int
    strategy: str
    clients: Sequence[str]
    owners: Mapping[str, str]
    """Queue -> client that owns it."""
    unowned: Sequence[str]
    lag_messages: Mapping[str, int | None]
    """Queue -> its lag; None if it is not known."""
    spread: int
    """Largest minus smallest number of queues per client."""
    readers: float
    """Average number of members that read a partition: above 1 if partitions are cut into slices."""


class PredictionRow(Struct, frozen=True, kw_only=True):
    """The effect of one change."""

    change: str
    """The change in words."""
    now: SituationRow
    then: SituationRow
    moved: Sequence[str]
    handovers: int
    took_ms: int
    """Time until the last hand-over (ms)."""
    notes: Sequence[str]


class PredictionsAnswer(Struct, frozen=True, kw_only=True):
    """The effects of changes to a group."""

    at_ms: int
    """Log time of the state from which they start (epoch ms)."""
    predictions: Sequence[PredictionRow]


def document_of(at_ms: int, answers: Mapping[str, Prediction]) -> PredictionsAnswer:
    """Return the predictions for JSON."""
    rows = [_prediction(words, answer) for words, answer in answers.items()]
    return PredictionsAnswer(at_ms=at_ms, predictions=rows)


def _prediction(words: str, answer: Prediction) -> PredictionRow:
    return PredictionRow(
        change=words,
        now=_situation(answer.now),
        then=_situation(answer.then),
        moved=list(map(str, answer.moved)),
        handovers=len(answer.handovers),
        took_ms=answer.took_ms,
        notes=notes_of(answer),
    )


def _situation(situation: Situation) -> SituationRow:
    return SituationRow(
        epoch=situation.epoch,
        strategy=situation.strategy,
        clients=situation.clients,
        owners={str(queue): client_id for queue, client_id in situation.owners.items()},
        unowned=list(map(str, situation.unowned)),
        lag_messages={str(queue): lag for queue, lag in situation.lag_messages.items()},
        spread=situation.spread,
        readers=round(situation.amplification, 3),
    )
