"""The output of `towline up` on a terminal: what happens, in sentences."""
