"""The embedded stack: nats-server, controller, billing and one node server as children of one supervisor, no Docker, no configuration.

May live here: starting, watching and stopping processes; the keys of an installation; copies of its bus. May not: anything those processes
do; it imports none of them.
"""
