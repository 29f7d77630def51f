"""A pull queue: producers add tasks; workers lease them, then delete them."""
