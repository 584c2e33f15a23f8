"""Journals, logs and messages as an earlier revision wrote them; tests/replay/test_recorded.py decides and reads them again.

``dispatch.bin``, ``vram.bin``: journals of simulated devices with snapshots. ``placement.bin``: logs of small clusters. ``node.bin``: the
journal of facts, the journals of both cores and the batches of a real node whose server was killed once. ``messages.json``: one message of
each kind. A recording is never changed: ``python -m tests.golden.recorded`` writes those that do not exist.
"""
