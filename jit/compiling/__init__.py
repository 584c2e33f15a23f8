"""Compiling foreign kernels in a process of its own, under limits of time and memory.

A compiler that aborts, hangs or eats memory on what a stranger wrote must cost that stranger a refusal and the node nothing. ``process`` is
the executor's side, ``worker`` the process, ``jobs`` the table of what it can do. May live here: that process and its limits. May not: any
compiler (back ends name their own in ``jobs``), caching.
"""
