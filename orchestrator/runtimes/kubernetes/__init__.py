"""Workers as Pods of a Kubernetes cluster."""
