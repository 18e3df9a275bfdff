"""A query that ended by itself: the sentence names the cause."""

from types import SimpleNamespace

import pytest
from pyspark.errors import StreamingQueryException

from wakeroll_pipeline.jobs.supervise import JobFailed, raise_if_dead

PLAN = """
=== Streaming Query ===
Logical Plan:
+- StreamingDataSourceV2ScanRelation KafkaTable, for an Exception
"""


def ended(text: str, cause: str) -> SimpleNamespace:
    """A query as Spark shows it when it has ended with an exception."""
    innermost = SimpleNamespace(getCause=lambda: None, getMessage=lambda: cause)
    thrown = SimpleNamespace(get=lambda: innermost)
    return SimpleNamespace(
        isActive=False,
        name="coordinate",
        exception=lambda: StreamingQueryException(text + PLAN),
        _jsq=SimpleNamespace(exception=lambda: thrown),
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] The folder should be empty.\nPlease use another one.",
            "coordinate ended: [STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] The folder should be empty.",
        ),
        ("[STREAM_FAILED] Query ended\nKeyError: 'a'\nmore", "coordinate ended: KeyError: 'a'"),
        (
            "Trace\nDeltaError: Local error\n  \x1b[31m↳\x1b[0m Unable to copy\n   \x1b[31m↳\x1b[0m No space",
            "coordinate ended: DeltaError: Local error: Unable to copy: No space",
        ),
    ],
)
def test_the_sentence_names_the_cause_and_not_the_plan(text, sentence):
    with pytest.raises(JobFailed) as told:
        raise_if_dead(ended(text, ""))
    assert str(told.value) == sentence
    with pytest.raises(JobFailed) as told:
        raise_if_dead(ended(text, "No space left on device\nsecond line"))
    assert str(told.value) == f"{sentence}; its cause: No space left on device"


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        (
            "org.apache.kafka.common.errors.SaslAuthenticationException: invalid credentials",
            "the brokers reject the login of this process: check kafka_config; the next start reads its files again",
        ),
        (
            "java.nio.file.AccessDeniedException: s3a://bucket/checkpoints: InvalidAccessKeyId",
            "the store rejects the credentials of this process, or lacks a right; the next start reads them again",
        ),
    ],
)
def test_a_rejected_login_has_its_remedy(text: str, remedy: str):
    """Spark's sentence does not say which file has the password, nor that a restart is enough."""
    with pytest.raises(JobFailed) as told:
        raise_if_dead(ended(text, ""))
    assert str(told.value) == f"coordinate ended: {text}; {remedy}"
