"""`/v1`: records and acks in batches, streams and peeks, for programs and people with curl alone.

Errors are problem details (RFC 9457). `openapi` describes every route, and the routes are made of
its table.
"""

from pixy.api.http.v1.openapi import openapi_document
from pixy.api.http.v1.problems import PROBLEM
from pixy.api.http.v1.routes import V1Routes

__all__ = ["PROBLEM", "V1Routes", "openapi_document"]
