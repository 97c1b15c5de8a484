from typing_extensions import Buffer

MAX_DEPTH: int
MAX_FIELDS: int
NOGIL_BYTES: int

def top_level_spans(body: Buffer) -> list[tuple[str, int, int]]: ...
