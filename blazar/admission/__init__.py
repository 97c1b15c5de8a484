"""Who may do what: pure decisions over keys. No I/O, no clock of its own, no logging."""
