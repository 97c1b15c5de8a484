"""The configuration: one table of keys (`schema`), strict reading of it (`load`), and what is told of it (`describe`).

Decision: the table of keys is a msgspec struct. Its annotations carry type, range, unit and a line of documentation, so
that validation, defaults and docs cannot disagree. What was rejected: a table of plain records with the struct made
from it, which the type checker cannot see through.
"""
