"""Shared infrastructure of the services: the bus, projections of the event log, REST, the embedded nats-server, processes, logs, traces.

May live here: what several services need. May not: decisions about sessions, tasks or credits; code of one service alone.
"""
