"""Compiling foreign kernels in a process of its own, under limits of time and memory.

A user's kernel on which a compiler aborts, hangs or uses too much memory is refused; the node is not affected. ``process`` is the
executor's side, ``worker`` the process, ``jobs`` the table of what it can do. May live here: that process and its limits. May not: any
compiler (back ends name their own in ``jobs``), caching.
"""
