"""Several controllers over one log, one of which is killed: real processes, a real bus, clients that retry with another controller.

``python -m tests.controllers --rounds 20``: clients (the load), audit (what must hold), match (one round).
"""
