"""Transport between a session and its node: batch encoding, the bus connection, the data port, the controller, state and recovery.

May live here: bytes, connections, and what outlasts them. May not: torch, and what a script sees (wooly/session.py).
"""
