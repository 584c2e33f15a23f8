"""Differential testing of random torch programs: CPU against device (``python -m tests.programs --help``, docs/fuzz-programs.md).

Modules: ``leaves`` (values that programs start from), ``templates`` and ``blocks`` (what a program may do), ``script`` (the generator),
``execute`` (running and comparing), ``worker`` (processes with a session each), ``shrink`` (minimal scripts), ``campaign`` (many programs).
"""
