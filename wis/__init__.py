"""WIS, the Wooly Instruction Set: its data (ops, program, kernel), encodings (encoding, text), validity (verify) and semantics
(reference). The specification is wis/README.md.

May live here: the definition, as pure functions and tables. May not: I/O, clocks, devices, planning, anything that makes it fast.
"""
