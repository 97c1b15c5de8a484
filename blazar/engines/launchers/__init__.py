"""Programs that give an engine which ships as a Python library the command line and the HTTP of its own server.

They are copied into the engine's directory at install and run there, apart from blazar: standard library and the engine
only.
"""
