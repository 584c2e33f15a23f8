"""From a bound program to fused groups: backend-neutral planning."""
