"""The files in which a supervisor keeps its workers, decisions and deaths across restarts."""
