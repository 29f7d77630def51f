"""The loop that samples queues, decides, and executes plans; its leader election, reloads and snapshot."""
