"""Export pools for other platforms to run: KEDA manifests, a compose file, systemd units. Values in, text out."""
