"""Real jobs of a real Slurm cluster hold reservations on a real stack, and its parts are killed meanwhile (`make test-slurm`).

May live here: the story of the cluster and the verdict on it. May not: tests of the hooks alone (`tests/unit/test_slurm`).
"""
