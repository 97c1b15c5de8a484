"""The command line. Commands parse their arguments, call one service or the gateway's API, and print; they decide
nothing.

Heavy imports stay inside the commands that need them, so that `blazar --help` answers at once.
"""
