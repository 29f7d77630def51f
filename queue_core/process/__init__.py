"""The process: logs, forks, standard streams, init and the service manager."""
