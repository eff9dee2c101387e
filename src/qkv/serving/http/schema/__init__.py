"""Schemas of requests and responses (pydantic), and the OpenAPI document."""
