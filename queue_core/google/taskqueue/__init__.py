"""Google's Task Queue REST API v1beta2 over the queues of a server. Its words stay in this folder."""
