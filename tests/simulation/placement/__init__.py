"""A cluster in virtual time around the placement core: a random workload (world), a controller that decides (controller), an auditor with
books of its own (auditor), bugs that it must catch (canaries). ``python -m tests.simulation.placement`` runs the large one."""
