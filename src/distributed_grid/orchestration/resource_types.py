"""The resource kinds that everybody has; custom ones are named as strings."""

from enum import StrEnum


class ResourceType(StrEnum):
    CPU = "cpu"
    GPU = "gpu"
    MEMORY = "memory"
