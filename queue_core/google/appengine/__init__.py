"""App Engine's task queue API: `POST /rpc_http`, as the SDKs for Python, Java and Go call it."""

PATH = "/rpc_http"
