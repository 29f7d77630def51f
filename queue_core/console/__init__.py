"""The console: pages over queues, pools, workers and tasks. A client of the API, with the rights of the viewer's token.

Whatever a page shows or does is an API call that the viewer could make: roles are checked there, not here.
"""
