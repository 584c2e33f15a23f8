"""The Kubernetes operator: pods that ask for a device wait behind a scheduling gate until they have a reservation, node servers run where a
pool says, and pods exchange their service account's token for a tenant's key.

May live here: everything that knows Kubernetes. May not: placement, which is the controller's.
"""
