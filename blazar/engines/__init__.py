"""Installed engines: where they come from, what their binaries say of themselves, and which command line a model gets.

An install is atomic: fetched aside, verified, probed (it has to start), then moved into place and written to the store.
The profile compiler is the single place that knows engines' flags.
"""
