"""Long runs that compress months of operation; a short form of each is part of the tests."""
