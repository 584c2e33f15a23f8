"""The kernel tier: programs of single threads, as reducible control-flow graphs of basic blocks over typed, mutable virtual registers.

The planner makes kernels of groups of tensor instructions, and user kernels arrive in this form. ``model`` is the data, ``ops`` the op
table, ``module`` several kernels of one source, ``encoding`` the bytes, ``text`` the text form, ``verify`` the rules, ``interpret`` the
definition, ``traps`` the records of traps. ``inline`` and ``expand`` rewrite into what back ends need to know (``strict`` holds the forms
of named functions); ``flow``, ``uniformity``, ``values``, ``certificate`` analyse. Chapter 9 of wis/README.md is the specification.

May live here: the definition of kernels. May not: making kernels (planning, front ends), running them on a device.
"""
