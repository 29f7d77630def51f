"""What the console costs a busy server: pages, streams, and the leases beside them."""
