"""Replay of journals: does it give the same decisions (``check``), why did a task wait (``why``), what would another
policy have given (``whatif``). A command, not a server: it reads the bus or files, prints one JSON document and ends.

    python -P -m services.replay check [--node N] [--from T] [--to T] [--file PATH]...
    python -P -m services.replay why TASK
    python -P -m services.replay whatif --policy P

May live here: reading journals, and the reports on them. May not: rules (scheduler.dispatch, scheduler.vram), writing to the bus.
"""
