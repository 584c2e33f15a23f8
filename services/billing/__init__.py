"""The billing service: a thin shell around ``billing``. It follows the event log, saves its view with the position, answers HTTP.

May live here: I/O of billing. May not: anything that decides an amount (billing/), imports of other services.
"""
