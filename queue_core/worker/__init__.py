"""Workers: handlers collected in an `App`, and the runner that leases for them, renews, deletes and drains."""
