"""Small facts that programs keep at a store for a while, such as which supervisors there are and where they listen."""
