"""Compiling foreign kernels in a process of its own, under limits of time and memory.

A user's kernel on which a compiler aborts, hangs or uses too much memory is refused; the node is not affected. ``process`` is the
executor's side, ``worker`` the process with the table of its jobs. May live here: that process and its limits. May not: any
compiler (back ends name their own in its table), caching.
"""
