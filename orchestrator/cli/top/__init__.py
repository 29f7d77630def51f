"""`towline top`: the fleet on a whole screen, with keys."""
