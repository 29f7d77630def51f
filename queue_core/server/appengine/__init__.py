"""App Engine's door: `POST /rpc_http`, as the SDKs for Python, Java and Go call it."""

PATH = "/rpc_http"
