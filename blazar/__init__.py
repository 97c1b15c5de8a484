"""Blazar: a local AI gateway in front of inference engines that it installs, starts, feeds, watches and restarts.

This module stays empty but for the version, so that `blazar --help` and the watchdog start without heavy imports.
"""

__version__ = "0.1.0"
