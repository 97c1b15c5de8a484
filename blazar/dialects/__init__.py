"""What the wire looks like in each client's dialect. Pure: bytes and records in, bytes and records out."""
