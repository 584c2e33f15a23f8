"""The kernel tier: programs of single threads, as reducible control-flow graphs of basic blocks over typed, mutable virtual registers.

This is what the planner makes of groups of tensor instructions, and the form in which foreign kernels will arrive. ``model`` is the data,
``ops`` the op table, ``encoding`` the bytes, ``text`` the text form, ``flow`` the analyses of control flow, ``verify`` the rules, and
``interpret`` the definition. Chapter 9 of wis/README.md is the specification. May live here: what a kernel is and means. May not: making
kernels (planning, front ends), running them on a device.
"""
