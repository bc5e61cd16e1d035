"""HTTP: translates clients' languages into domain values, and back. Knows the gateway, not the store."""
