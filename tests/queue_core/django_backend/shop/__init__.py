"""An app of the site."""
