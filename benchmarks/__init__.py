"""Benchmarks: ratios beside local torch (and beside rgpu, for the cost of recording), all in one run.

May live here: workloads, and the driver that lets two processes take turns. May not: assertions that belong to tests, absolute claims.
``python -m benchmarks [NAME...]`` runs all or the named ones, prints a table and rewrites docs/benchmarks.md.
"""
