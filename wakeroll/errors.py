"""Exceptions of the SDK. Each message names the failure and the remedy."""


class WakerollError(Exception):
    """Base class of all exceptions that wakeroll raises itself."""


class InvalidUsage(WakerollError):
    """An argument or a call is not valid; the message names what is valid. A retry does not help."""


def in_words(problem: BaseException) -> str:
    """Return the representation of an application's exception, even if its own `__repr__` fails."""
    try:
        return repr(problem)
    except Exception:
        return f"{type(problem).__name__}, whose text cannot be read"


def missing_extra(what: str, extra: str, missing: ModuleNotFoundError) -> InvalidUsage:
    """Return the error for a package that is not installed; it names the extra that installs it.

    Args:
        what: subject of the sentence, such as ``this command``.
        extra: name of the extra, such as ``ask``.
        missing: error of the import.
    """
    package = (missing.name or "").partition(".")[0]
    return InvalidUsage(
        f"{what} needs the extra `{extra}` ({package} is missing); install it with: pip install 'wakeroll[{extra}]'"
    )


class NotReachable(WakerollError):
    """No broker answered in time, or the broker has no control plane."""


class ConsumerFenced(WakerollError):
    """The coordinator removed this consumer from its group; the consumer does not rejoin by itself.

    Attributes:
        reason: ``duplicate`` (another process uses the same client_id), ``refused`` (the group is full, or consumes in
            another mode), ``kicked`` (an operator made it leave) or ``left`` (the client was unregistered). If its
            instance ends for any other reason (``expired``, ``deaf``, ``epoch``, ``silent``), the consumer rejoins by
            itself, and this error is not raised.
        by: for ``duplicate``, the id of the instance that now has the client_id; for ``kicked``, the name of the
            operator; otherwise empty.
    """

    def __init__(self, message: str, reason: str, by: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.by = by


class LoginFailed(NotReachable):
    """The brokers reject the login, or the TLS connection fails. A retry does not help before a setting is changed."""


class AccessDenied(NotReachable):
    """The brokers deny the principal an operation; the message names the topic and the operation."""


class RequestRefused(WakerollError):
    """The coordinator rejected a request; nothing has changed.

    Attributes:
        rule: the broken rule, as named in the `rejected` decision.
    """

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class RequestUnanswered(WakerollError):
    """The coordinator did not answer in time. The request is recorded and will be executed."""
