"""An error in the shape that the client's dialect expects.

As a whole answer, and as a frame in the middle of a stream.
"""

from __future__ import annotations

import msgspec

from blazar.base.errors import ApiError

_encode = msgspec.json.Encoder().encode


def error_body(error: ApiError) -> bytes:
    """The OpenAI error envelope (SPEC §2), as JSON; `kind` says which limit it was, where a code has several."""
    told = {
        "message": str(error),
        "type": "blazar_error",
        "code": error.code.status,
        "blazar_code": error.code.name,
    }
    return _encode({"error": told | {"kind": error.kind} if error.kind else told})


def error_frame(error: ApiError, *, between_frames: bool) -> bytes:
    """The same as the last event of a stream (C06).

    Args:
        between_frames: the stream stands between two events; where it does not, the broken one is closed first.
    """
    return (b"data: " if between_frames else b"\n\ndata: ") + error_body(error) + b"\n\n"
