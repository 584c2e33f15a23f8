"""Several controllers over one log, one of them killed in the middle: real processes, a real bus, clients that try again elsewhere.

``python -m tests.controllers --rounds 20``. May live here: the load (clients), what must hold (audit), one round (match).
"""
