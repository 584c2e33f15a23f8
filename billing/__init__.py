"""Billing, as pure functions of the event log: meters, tariff, ledger, projection, report, verification.

May live here: integer arithmetic over facts. May not: clocks, I/O, floats. Amounts are micro-credits (1 credit = 1,000,000 micro), always
``int``; the shell in services/billing reads the log, saves the view with its position, and answers HTTP.
"""
