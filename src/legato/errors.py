"""Every error Legato raises on purpose, in one tree.

    LegatoError                   the class docstring is the default message
    ├── NotFound      UnknownHandle · UnknownTurn · UnknownModel
    ├── Invalid       BadInput · BadConfig · BadBackup · UnfinishedTurn
    ├── Conflict      LeaseLost · AliasTaken · DedupMismatch · ConversationBusy · Stale
    ├── Refused       Unauthenticated · Forbidden · LimitReached
    ├── Unavailable   StoreUnavailable (StoreAway) · ModelUnavailable (RateLimited) · Draining        (retryable)
    └── Defect        an invariant is broken: logged with its position, never swallowed · Unreadable

`code` is the stable, machine-readable name; `retryable` says whether the same call may succeed later.
A tool that fails does not raise: its failure is a `tool_result` that says so.
"""

from typing import ClassVar


class LegatoError(Exception):
    """Something went wrong in Legato."""

    code: ClassVar[str] = "legato_error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str | None = None, *, param: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())
        self.param = param

    @property
    def message(self) -> str:
        return str(self.args[0])


class NotFound(LegatoError):
    """There is nothing by that name."""

    code = "not_found"


class UnknownHandle(NotFound):
    """No conversation by that name."""

    code = "conversation_not_found"


class UnknownTurn(NotFound):
    """No turn by that id."""

    code = "turn_not_found"


class UnknownModel(NotFound):
    """No model or agent by that name."""

    code = "model_not_found"


class Invalid(LegatoError):
    """The request cannot be understood."""

    code = "invalid_request"


class BadInput(Invalid):
    """A value of the request is not acceptable."""

    code = "invalid_value"


class ContextTooLarge(Invalid):
    """The request has more tokens than the model takes."""

    code = "context_length_exceeded"


class BadConfig(Invalid):
    """The configuration cannot be used."""

    code = "invalid_config"


class BadBackup(Invalid):
    """The file is not a backup that can be used."""

    code = "invalid_backup"


class UnfinishedTurn(Invalid):
    """That turn has not finished, so nothing can branch off it yet. Wait for it, or cancel it."""

    code = "turn_unfinished"


class Conflict(LegatoError):
    """The request disagrees with what is already true."""

    code = "conflict"


class LeaseLost(Conflict):
    """Another worker has taken this turn over; nothing was written."""

    code = "lease_lost"


class AliasTaken(Conflict):
    """That name already means another conversation."""

    code = "alias_taken"


class DedupMismatch(Conflict):
    """The same idempotency key was used before with a different request."""

    code = "idempotency_key_conflict"


class ConversationBusy(Conflict):
    """The conversation is busy with another turn. Wait for it, cancel it, or choose queue, steer or interrupt."""

    code = "conversation_locked"

    def __init__(self, message: str | None = None, *, conversation_id: str) -> None:
        super().__init__(message)
        self.conversation_id = conversation_id


class Stale(Conflict):
    """The conversation changed since this was prepared; nothing was written."""

    code = "stale"


class Refused(LegatoError):
    """Not allowed."""

    code = "refused"


class Unauthenticated(Refused):
    """A valid API key is needed: send it as 'Authorization: Bearer KEY'."""

    code = "invalid_api_key"


class Forbidden(Refused):
    """This key may not do that."""

    code = "forbidden"


class LimitReached(Refused):
    """A configured limit was reached."""

    code = "limit_reached"


class Unavailable(LegatoError):
    """Something Legato depends on does not answer. Try again."""

    code = "unavailable"
    retryable = True


class StoreUnavailable(Unavailable):
    """The database cannot be opened, read or written."""

    code = "store_unavailable"


class StoreAway(StoreUnavailable):
    """The database does not answer. Nothing was written; try again."""


class ModelUnavailable(Unavailable):
    """The model did not answer."""

    code = "model_unavailable"
    retry_after: float | None = None
    """How many seconds the provider wants to be left alone, where it says so."""


class RateLimited(ModelUnavailable):
    """The model's provider takes no more requests for now. Try again later."""

    code = "rate_limit_exceeded"


class TurnFailed(ModelUnavailable):
    """A turn ended without an answer, and why. Asked for again, it is the same turn, and the same answer."""

    def __init__(self, code: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{message} ({code})")
        self.retry_after = retry_after
        self.code = code  # type: ignore[misc]  # the kind of failure is known only here


class Draining(Unavailable):
    """The gateway is shutting down and takes no new work. Try again in a moment."""

    code = "draining"


class Defect(LegatoError):
    """An invariant of Legato is broken. This is a bug."""

    code = "defect"


class Unreadable(Defect):
    """What is stored cannot be read."""

    code = "unreadable"

    @classmethod
    def because(cls, what: str, error: Exception) -> "Unreadable":
        advice = "'legato verify' shows what else is damaged; a backup may have it whole."
        return cls(f"{what}: {error}. {advice}")
