"""WIS, the Wooly Instruction Set: what it is (ops, program, kernel), how it is written (encoding, text), what is valid (verify) and what it
means (reference). The specification is wis/README.md.

May live here: the definition, as pure functions and tables. May not: I/O, clocks, devices, planning, anything that makes it fast.
"""
