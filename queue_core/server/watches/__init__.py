"""Watches beside a server's calls: its clock, snapshots that readers hold, and erasures."""
