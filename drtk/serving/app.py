"""Web application of drtk serve: a page, and the same data as JSON with an OpenAPI description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware

from drtk import __version__
from drtk.errors import DrtkError
from drtk.serving.systems import FullPassage, ListedQuery, SystemDescription, SystemHits, Systems, SystemsOverview

HOSTS = ["127.0.0.1", "localhost", "testserver"]  # against DNS rebinding: sites with names that resolve to this machine
MAX_QUERY, MAX_HITS = 20_000, 100  # characters, passages
_FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def create_app(systems: Systems) -> FastAPI:
    """Return the application: `/` is the page, `/api/…` its data, `/openapi.json` the description of the API."""
    app = FastAPI(title="drtk serve", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=HOSTS)

    @app.middleware("http")
    async def add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    @app.exception_handler(DrtkError)
    async def report_error(request: Request, error: DrtkError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=400)

    def add_file(path: str, name: str, media_type: str) -> None:
        content = (resources.files("drtk") / "serving" / name).read_bytes()
        app.add_api_route(path, lambda: Response(content, media_type=media_type), include_in_schema=False)

    for path, (name, media_type) in _FILES.items():
        add_file(path, name, media_type)

    @app.get("/api/systems")
    def list_systems() -> SystemsOverview:
        """Return name, index type and number of passages of each system, the names of the measures, and the number of queries."""
        described = [
            SystemDescription(system.name, system.group.manifest["type"], len(system.group))
            for system in systems.systems
        ]
        return SystemsOverview(described, systems.measures, len(systems.list_queries()))

    @app.get("/api/search", responses={400: {"description": "The search failed"}})
    def search(
        query: Annotated[str, Query(min_length=1, max_length=MAX_QUERY)],
        k: Annotated[int, Query(ge=1, le=MAX_HITS)] = 10,
        query_id: str | None = None,
    ) -> list[SystemHits]:
        """Return the best passages of each system, with relevance grades for `query_id`, by default the query with this text."""
        if not query.strip():
            raise HTTPException(422, "the query is blank")
        return list(systems.search(query, k, query_id))

    @app.get("/api/queries")
    def list_queries() -> list[ListedQuery]:
        """Return the queries of the query set, with the values of the measures for each system."""
        return systems.list_queries()

    @app.get("/api/passage", responses={404: {"description": "No such passage or system"}})
    def get_passage(id: str, system: str | None = None) -> FullPassage:
        """Return a passage of a system, by default the first one, with its text and the ids of its neighbors."""
        passage = systems.get_passage(id, system)
        if passage is None:
            raise HTTPException(404, "no such passage or system")
        return passage

    return app
