"""Every reader of foreign input, on inputs that were right before something happened to them."""
