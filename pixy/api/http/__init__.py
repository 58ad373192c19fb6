"""pixy's HTTP APIs: kafka-pixy's, and `/v1`. Translates requests to calls of a proxy, and nothing
else.
"""

from pixy.api.http.server import HttpServer, web_options
from pixy.api.http.v1 import openapi_document

__all__ = ["HttpServer", "openapi_document", "web_options"]
