"""The console on a server's listener."""
