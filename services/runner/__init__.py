"""The runner: executes tenants' scripts as processes on its machine, publishes their output and reports how they end.

It runs other people's Python code as its own Unix user. A script can read what that user can read, the runner's credentials and the scripts
beside it included, and reach what the machine can reach. Give it a user (or a container) of its own, and use RUNNER_TENANTS to keep tenants
that do not trust each other on separate runners.

May live here: starting, bounding and ending script processes, their output. May not: decisions about tasks (services.controller).
"""
