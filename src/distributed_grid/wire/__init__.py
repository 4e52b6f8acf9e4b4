"""Every request and every answer of the API, one typed definition each, by noun.

The controller's routes name these types, so the OpenAPI document comes from them. The functions that build answers, the
client's methods and the code that reads answers use the same types, so mypy checks each key. Tests check every answer
of a served controller against its definition.

Only the controller imports this package at run time: it needs pydantic, which a command must not wait for. All other
packages import it for type checking only.
"""
