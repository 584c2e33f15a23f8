"""Unmodified trainings on real processes, one of which is killed, stopped or cut off meanwhile (`make chaos`).

May live here: the stack of separate processes, the faults, the verdict on a run. May not: tests of single reactions to an outage
(`tests/integration/test_outages.py`).
"""
