"""The executor process: one device, its engine, all sessions' memory on it, its data port.

May live here: executing what the server dispatched, in the order given. May not: choosing that order, the bus, other devices.
"""
