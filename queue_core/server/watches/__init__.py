"""What a server watches beside its calls: its clock, snapshots held by readers, and erasures."""
