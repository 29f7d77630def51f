"""Imports Google's SDK for Python for the tests, without the warnings its modules cause."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from google.appengine.api import apiproxy_stub_map, memcache, taskqueue
    from google.appengine.api.memcache import memcache_stub
    from google.appengine.api.taskqueue import taskqueue_service_bytes_pb2 as service_pb2
    from google.appengine.ext.remote_api import remote_api_bytes_pb2 as remote_pb2
    from google.appengine.runtime import apiproxy_errors, default_api_stub

__all__ = [
    "apiproxy_errors",
    "apiproxy_stub_map",
    "default_api_stub",
    "memcache",
    "memcache_stub",
    "remote_pb2",
    "service_pb2",
    "taskqueue",
]
