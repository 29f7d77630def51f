"""The same pools for somebody else to run: manifests for KEDA, a compose file, systemd units. Values in, text out."""
