"""Search the tasks of a queue by what they went through, in bounded steps; and change all that match, in batches."""
