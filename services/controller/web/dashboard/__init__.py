"""The Dashboard: the whole cluster at a glance, and the charts that it shares with the pages of nodes."""
