"""Transport between a session and its node: batch encoding, the replay log, the bus connection, the data port, the controller.

May live here: bytes and connections. May not: torch, and the session's rules (wooly/session.py).
"""
