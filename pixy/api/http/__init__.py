"""pixy's HTTP APIs: kafka-pixy's, and `/v1`. Translates requests to calls of a proxy, and nothing
else.
"""

from pixy.api.http.server import HttpServer, web_options

__all__ = ["HttpServer", "web_options"]
