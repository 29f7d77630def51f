"""Long runs that a life of months is made of, compressed; a short form of each is part of the tests."""
