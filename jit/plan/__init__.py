"""From a bound program to fused groups: backend-neutral planning.

May live here: grouping, dependences, layout of temporaries. May not: code generation, memory, anything of one back end.
"""
