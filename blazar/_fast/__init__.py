"""Compiled kernels, one algorithm a file, each with a readable Python twin in `tests/fast/reference.py`.

They import nothing of blazar, so that each can be built, read, measured and fuzzed alone. What is here was measured
hot: what runs for every chunk of every stream. What runs once a request is Python, unless it holds the loop for a
body's whole length (`spans`).
"""
