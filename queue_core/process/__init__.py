"""What every process of Towline needs whatever it does: logs, forks, its standard streams, its service manager."""
