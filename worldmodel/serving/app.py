"""The service: three endpoints of WorldArena's Track 2, and a websocket for streaming sessions."""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from worldmodel.serving.config import ServeConfig, is_loopback
from worldmodel.serving.errors import ServiceError, invalid
from worldmodel.serving.idempotency import AnswerBook
from worldmodel.serving.messages import (
    API_VERSION,
    Identified,
    Prediction,
    PredictRequest,
    PredictResponse,
    parse_message,
)
from worldmodel.serving.predictor import Predictor, ServedModel
from worldmodel.serving.sessions import SessionDesk
from worldmodel.serving.worker import Worker

LOG = logging.getLogger("worldmodel.serving")
DROPPED_BODIES = 8  # an oversized request is read up to this multiple of the limit
DOCS_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>worldmodel service</title>
<style>body{font:16px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}
pre{overflow:auto;padding:1rem;border:1px solid #8886}</style>
<h1>worldmodel service</h1><div id="paths"></div>
<h2>OpenAPI</h2>
<pre id="text"></pre><script>
fetch("openapi.json").then(r => r.json()).then(api => {
  for (const [path, verbs] of Object.entries(api.paths)) for (const [verb, what] of Object.entries(verbs)) {
    const line = document.createElement("p");
    line.textContent = verb.toUpperCase() + " " + path + ": " + what.summary;
    paths.append(line);
  }
  text.textContent = JSON.stringify(api, null, 2);
})</script></html>"""


class Service:
    """State shared by the endpoints."""

    def __init__(self, served: ServedModel, config: ServeConfig) -> None:
        self.config = config
        self.predictor = Predictor(served, config)
        self.worker = Worker(config.max_concurrency)
        self.book = AnswerBook(config.remembered, config.remembered_bytes)
        self.desk = SessionDesk(self.predictor, self.worker, config)
        self.held = 0  # bytes of requests being received or processed

    def check_caller(self, headers: Any) -> None:
        """Check the token, if one is set, and refuse pages of other sites, by host name or origin."""
        host = headers.get("host", "").rsplit(":", 1)[0]
        if is_loopback(self.config.host) and not is_loopback(host):
            raise ServiceError("PERMISSION_DENIED", "this service answers to its loopback address only")
        origin = headers.get("origin")
        if origin is not None and origin.split("//", 1)[-1] != headers.get("host", ""):
            raise ServiceError("PERMISSION_DENIED", "pages of another origin may not use this service")
        if not self.config.token:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.encode(), self.config.token.encode()):
            raise ServiceError("UNAUTHENTICATED", "expected the header Authorization: Bearer TOKEN")

    async def predict(self, request: Request) -> bytes:
        """Handle a request; returns the response body."""
        if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            raise invalid("expected the header Content-Type: application/json")
        async with self._body(request) as body:
            return await self._answer(body, request)

    async def _answer(self, body: bytearray, request: Request) -> bytes:
        # In a thread, so that other requests are served meanwhile.
        try:
            asked = await asyncio.to_thread(parse_message, PredictRequest, body)
        except ServiceError as error:
            error.request_id = await asyncio.to_thread(_request_id, body)
            raise
        request_id = asked.request_id
        digest = hashlib.sha256(asked.model_dump_json().encode()).digest()
        try:
            return await self.book.answer(request_id, digest, lambda: self._compute(asked, request))
        except ServiceError as error:
            error.request_id = request_id
            raise

    async def _compute(self, asked: PredictRequest, request: Request) -> bytes:
        samples = await asyncio.to_thread(self.predictor.check, asked)
        job = asyncio.ensure_future(
            self.worker.run(
                lambda is_wanted: self.predictor.predict(samples, asked.profile_id, is_wanted),
                self.config.deadline_s,
            )
        )
        while not (await asyncio.wait({job}, timeout=0.5))[0]:
            if await request.is_disconnected():
                job.cancel()
        predictions = [
            Prediction.model_construct(sample_id=sample.sample_id, frames=frames)
            for sample, frames in zip(asked.samples, job.result(), strict=True)
        ]
        answer = PredictResponse(
            request_id=asked.request_id,
            model_version=self.predictor.served.version,
            predictions=predictions,
        )
        return answer.model_dump_json(warnings=False).encode()

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytearray]:
        """Read the body within the limits; it counts as held until the response is sent."""
        body = bytearray()
        try:
            await self._read(request, body)
            yield body
        finally:
            self.held -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        try:
            async with asyncio.timeout(self.config.read_s):
                refusal = await self._receive(request, body)
        except TimeoutError as error:
            raise invalid(f"the body did not arrive in {self.config.read_s:g} s") from error
        if refusal is not None:
            raise refusal

    async def _receive(self, request: Request, body: bytearray) -> ServiceError | None:
        limit = self.config.max_request_bytes
        too_large = ServiceError("PAYLOAD_TOO_LARGE", f"a request has at most {limit} bytes")
        declared = request.headers.get("content-length", "0")
        refusal = too_large if declared.isdigit() and int(declared) > limit else None
        num_read = 0
        async for chunk in request.stream():
            num_read += len(chunk)
            if num_read > limit:
                refusal = too_large
            elif self.held + len(chunk) > self.config.max_concurrency * limit:
                refusal = refusal or ServiceError("OVERLOADED", "other requests are arriving; try again soon")
            # The rest of a refused body is read and dropped, up to a bound: a client that is still sending
            # would otherwise get a broken pipe instead of the response.
            if num_read > DROPPED_BODIES * limit:
                break
            if refusal is None:
                body += chunk
                self.held += len(chunk)
            else:
                self.held -= len(body)
                body.clear()
        return refusal


def _request_id(body: bytearray) -> str | None:
    try:
        return parse_message(Identified, body).request_id
    except ServiceError:
        return None


def create_app(served: ServedModel, config: ServeConfig | None = None) -> FastAPI:
    """Create the application for any ASGI server."""
    service = Service(served, config or ServeConfig())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.worker.close()

    app = FastAPI(
        title="worldmodel",
        version=API_VERSION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.service = service
    _add_errors(app)
    _add_endpoints(app, service)
    return app


def _add_endpoints(app: FastAPI, service: Service) -> None:
    schema = PredictRequest.model_json_schema(ref_template="#/components/schemas/{model}")
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    @app.get("/v1/health", summary="Whether the model is ready")
    async def health() -> dict[str, str]:
        version = service.predictor.served.version
        return {"status": "ready", "api_version": API_VERSION, "model_version": version}

    @app.get("/v1/capabilities", summary="Profiles and limits")
    async def capabilities(request: Request) -> dict[str, Any]:
        service.check_caller(request.headers)
        return service.predictor.capabilities()

    @app.post(
        "/v1/predict",
        summary="Frames for actions, without a session",
        response_model=PredictResponse,
        openapi_extra=body,
    )
    async def predict(request: Request) -> Response:
        service.check_caller(request.headers)
        return Response(await service.predict(request), media_type="application/json")

    @app.websocket("/v1/session")
    async def session(socket: WebSocket) -> None:
        try:
            service.check_caller(socket.headers)
        except ServiceError as error:
            await socket.accept()
            await socket.send_json({"type": "error", **error.body()})
            await socket.close(1008)
            return
        await service.desk.serve(socket)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(DOCS_PAGE)


def _add_errors(app: FastAPI) -> None:
    """A common structure for all error responses, which reveals no internals of the service."""

    @app.exception_handler(ServiceError)
    async def known(_: Request, error: ServiceError) -> JSONResponse:
        headers = {"Retry-After": "1"} if error.code == "OVERLOADED" else None
        return JSONResponse(error.body(), error.status, headers)

    @app.exception_handler(HTTPException)
    async def wrong_path(_: Request, error: HTTPException) -> JSONResponse:
        body = invalid(f"{error.detail}: see /openapi.json for what there is").body()
        return JSONResponse(body, error.status_code)

    @app.exception_handler(Exception)
    async def unknown(_: Request, error: Exception) -> JSONResponse:
        LOG.error("a request failed: %s", type(error).__name__, exc_info=error)
        fault = ServiceError("INTERNAL", "the prediction failed; the service goes on")
        return JSONResponse(fault.body(), fault.status)
