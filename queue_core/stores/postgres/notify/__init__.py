"""The wake-up of waiters in other processes with LISTEN and NOTIFY."""
