"""The wire: what travels over the bus and what the event log holds.

May live here: data types, subjects, limits and their codecs. May not: I/O, clocks, behaviour. Structs are append-only: new fields go last
with defaults, nothing is renamed, reordered or retyped; tags are written by hand and carry a version.
"""
