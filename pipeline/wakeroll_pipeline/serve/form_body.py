"""The fields of a form that a browser sent, with bounds."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request

from wakeroll_pipeline.serve.access.refusal import Refused

MOST_BYTES = 128 * 1024
MOST_FIELDS = 64
_FORM = "application/x-www-form-urlencoded"


async def fields_of(request: Request) -> Mapping[str, str]:
    """Return the fields of a form; of a name that occurs twice, the last value.

    Raises:
        Refused: the body is not a form, or is too large.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        raise Refused(f"the request has the type {kind[:64]!r}; expected {_FORM}", 415)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise Refused(f"the form has more than {MOST_BYTES} bytes", 413)
    try:
        return dict(parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:  # not ASCII, or too many fields
        raise Refused("the form cannot be read", 400) from None
