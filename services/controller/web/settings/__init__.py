"""The Settings pages: cluster, tiers, keys, users, tenants, audit."""
