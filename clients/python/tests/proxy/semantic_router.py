"""What LiteLLM's auto-router uses of the package of this name, which needs a score of others: the first route of which
an utterance is like the text."""

from __future__ import annotations

import sys
from typing import Any

from pydantic import BaseModel


class Route(BaseModel):
    name: str
    description: str | None = None
    utterances: list[str]
    score_threshold: float | None = None


class RouteChoice(BaseModel):
    name: str | None = None


class AsymmetricDenseMixin:
    pass


class DenseEncoder(BaseModel):
    name: str
    score_threshold: float | None = None


class SemanticRouter:
    def __init__(self, routes: list[Route], encoder: Any, auto_sync: str) -> None:
        self.routes = [(route.name, encoder.encode_documents(route.utterances)) for route in routes]

    async def acall(self, vector: list[float]) -> RouteChoice:
        return RouteChoice(name=next((name for name, vectors in self.routes if vector in vectors), None))


# Its modules.
for name in ("routers", "routers.base", "schema", "encoders", "encoders.base"):
    sys.modules[f"{__name__}.{name}"] = sys.modules[__name__]
__path__: list[str] = []
