"""The files in which a supervisor keeps its workers, decisions and events across restarts."""
