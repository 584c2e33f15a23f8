"""Mutation testing: sampled faults are planted one at a time, and the tests that reach the place must fail.

Run ``make mutate``; scores go to docs/mutation.md. Mutants come from mutmut's operators and from those in ``operators``; ``runner`` runs
the selected tests in forked processes.
"""
