"""Recorded runs of real nodes under many mixes of tenants, each run again: ``python -m tests.replay`` (make replay-runs).

``mixes``: what happens in a run, drawn from its seed. ``life``: runs a real node under it. ``__main__``: all of them, and docs/replay.md.
"""
