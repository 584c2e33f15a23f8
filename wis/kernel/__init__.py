"""The kernel tier: programs of single threads, as reducible control-flow graphs of basic blocks over typed, mutable virtual registers.

This is what the planner makes of groups of tensor instructions, and the form in which foreign kernels arrive. ``model`` is the data,
``ops`` the op table, ``module`` several kernels of one source, ``encoding`` the bytes, ``text`` the text form, ``verify`` the rules,
``interpret`` the definition, ``traps`` who trapped first. ``inline`` and ``expand`` rewrite into what back ends need to know (``strict``
holds the forms of named functions); ``flow``, ``uniformity``, ``values``, ``affine``, ``certificate`` find out what holds. Chapter 9 of
wis/README.md is the specification. May live here: what a kernel is and means. May not: making kernels (planning, front ends), running
them on a device.
"""
