"""Shared plumbing of all services: the bus, the embedded nats-server, process life cycle, logging, tracing.

May live here: plumbing with no opinion about sessions, tasks or credits. May not: anything one service alone needs.
"""
