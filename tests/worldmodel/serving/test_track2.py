"""What the text of WorldArena's Track-2 interface says a service must do, section by section.

`test_service.py` holds what has the pipeline or a running session beside it; here are the remaining lines.
"""

import base64
import json
import logging
import struct
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.service import running
from tests.worldmodel.serving.test_service import post, request, sample
from worldmodel.environments.spaces import WorldSpec
from worldmodel.serving.app import create_app
from worldmodel.serving.client import WorldModelClient
from worldmodel.serving.config import ServeConfig
from worldmodel.serving.errors import RETRYABLE, STATUS, ServiceError
from worldmodel.serving.predictor import ServedModel
from worldmodel.serving.run import serve_model

TOKEN = "a token of this test only"
CONFIG = ServeConfig(max_batch_size=3, max_context_frames=3, max_prediction_frames=5, max_concurrency=2)


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return serve_model("desk")


@pytest.fixture(scope="module")
def url(served: ServedModel) -> Iterator[str]:
    with running(create_app(served, CONFIG)) as address:
        yield address


@pytest.fixture(scope="module")
def spec(served: ServedModel) -> WorldSpec:
    return WorldSpec.of(served.model.contract, served.model.normalizer)


def get(url: str, path: str, token: str = "") -> tuple[int, Any, str]:
    asked = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, json.loads(answer.read()), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), error.headers["Content-Type"]


def test_2_health_is_open_and_everything_else_asks_for_the_token(
    served: ServedModel, spec: WorldSpec, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with running(create_app(served, ServeConfig(token=TOKEN))) as address:
        assert get(address, "/v1/health")[0] == 200
        for token, status in (("", 401), ("another", 401), (TOKEN, 200)):
            assert get(address, "/v1/capabilities", token)[0] == status
        body = request(WorldModelClient(address, TOKEN), [sample(spec)])
        for header, status in ((f"Basic {TOKEN}", 401), (TOKEN, 401), (f"Bearer {TOKEN}", 200)):
            assert post(address, body, {"Authorization": header})[0] == status
    assert TOKEN not in caplog.text  # 11: redacted in logs, and no payload in them
    assert body["samples"][0]["context"]["frames"][0]["data"][:200] not in caplog.text


def test_4_1_ids_are_echoed_letter_by_letter(url: str, spec: WorldSpec) -> None:
    body = request(WorldModelClient(url), [sample(spec) | {"sample_id": ' "Name" \u00e9\u4e2d\n'}])
    body["request_id"] = str(uuid.uuid4()).upper()
    status, answer = post(url, body)
    assert status == 200
    assert answer["request_id"] == body["request_id"]
    assert answer["model_version"] == body["model_version"]
    assert answer["predictions"][0]["sample_id"] == body["samples"][0]["sample_id"]


def test_4_2_pictures_are_bare_png_files_of_8_bit_rgb(url: str, spec: WorldSpec) -> None:
    _, answer = post(url, request(WorldModelClient(url), [sample(spec)]))
    for picture in answer["predictions"][0]["frames"]:
        kind = {name: picture[name] for name in ("encoding", "color_space", "channels", "height", "width")}
        assert kind == {
            "encoding": "png_base64",
            "color_space": "RGB",
            "channels": 3,
            "height": spec.height,
            "width": spec.width,
        }
        data = base64.b64decode(picture["data"], validate=True)
        assert struct.unpack(">IIBB", data[16:26]) == (spec.width, spec.height, 8, 2)
        place, chunks = 8, []
        while place < len(data):
            (length,) = struct.unpack(">I", data[place : place + 4])
            chunks.append(data[place + 4 : place + 8])
            place += 12 + length
        assert set(chunks) == {b"IHDR", b"IDAT", b"IEND"}  # no text, no EXIF


def test_5_6_health_and_manifest_hold_their_fields_and_stay_the_same_after_a_restart(
    served: ServedModel, url: str
) -> None:
    status, health, kind = get(url, "/v1/health")
    assert (status, set(health), kind) == (
        200,
        {"status", "api_version", "model_version"},
        "application/json",
    )
    _, manifest, _ = get(url, "/v1/capabilities")
    assert set(manifest) == {"api_version", "model_version", "profiles", "limits", "determinism"}
    for profile in manifest["profiles"]:
        assert profile["context_frames"]["min"] >= 1
        assert profile["prediction_frames"]["min"] >= 1
        assert profile["action"]["dtype"] == "float32"
        assert profile["action"]["dimension"] > 0
        assert profile["state"] == {"supported": False, "dimension": None}
        assert profile["instruction"] == {"supported": False}
    assert all(isinstance(value, int) and value > 0 for value in manifest["limits"].values())
    with running(create_app(serve_model("desk"), CONFIG)) as address:  # read from the disk again
        assert get(address, "/v1/capabilities")[1] == manifest


def test_6_what_the_manifest_declares_is_accepted_and_no_more(url: str, spec: WorldSpec) -> None:
    client = WorldModelClient(url)
    largest = [
        sample(spec, 0, num_actions=5, context=1),
        sample(spec, 1, num_actions=1, context=3),  # 7.1: lengths may differ within a request
        sample(spec, 2, num_actions=5, context=3),
    ]
    status, answer = post(url, request(client, largest))
    assert status == 200
    assert [one["sample_id"] for one in answer["predictions"]] == [one["sample_id"] for one in largest]
    assert [len(one["frames"]) for one in answer["predictions"]] == [5, 1, 5]
    for one in (sample(spec, num_actions=6), sample(spec, num_actions=0), sample(spec, context=4)):
        assert post(url, request(client, [one]))[0] == 400


@pytest.mark.parametrize(
    ("field", "value", "names"),
    [
        ("seed", 2**63, "seed"),
        ("seed", -1, "seed"),
        ("seed", "7", "seed"),
        ("sample_id", 3, "sample_id"),
        ("sample_id", "sample-0", "sample_id"),  # twice
        ("actions", [[0.0] * 3], "samples[1].actions[0] has dimension 3"),
        ("context.states", [[0.0]] * 2, "states"),  # one frame, two states
        ("context.actions", [[0.0] * 16], "context.actions"),
        ("context.instruction", 3, "instruction"),
    ],
)
def test_7_1_one_invalid_sample_refuses_the_whole_request(
    url: str, spec: WorldSpec, field: str, value: Any, names: str
) -> None:
    body = request(WorldModelClient(url), [sample(spec, 0), sample(spec, 1)])
    place, *inner = field.split(".")
    if inner:
        body["samples"][1][place][inner[0]] = value
    else:
        body["samples"][1][place] = value
    status, answer = post(url, body)
    assert (status, answer["error"]["code"]) == (400, "INVALID_ARGUMENT")
    assert names in answer["error"]["message"]
    assert set(answer) == {"error"}
    assert answer["error"]["request_id"] == body["request_id"]


def test_7_2_an_answer_holds_predictions_and_nothing_that_advises(url: str, spec: WorldSpec) -> None:
    body = request(WorldModelClient(url), [sample(spec) | {"seed": 2**63 - 1}])
    body["a_field_of_1.1"] = body["samples"][0]["another"] = {"x": [1]}  # 10: unknown fields are ignored
    body["samples"][0]["context"].pop("states")
    body["samples"][0]["context"].pop("instruction")  # omission and null are equivalent
    status, answer = post(url, body)
    assert status == 200
    assert set(answer) == {"api_version", "request_id", "model_version", "predictions"}
    assert set(answer["predictions"][0]) == {"sample_id", "frames"}
    body["request_id"] = str(uuid.uuid4())
    body["samples"][0]["context"] |= {"states": None, "instruction": None}
    assert post(url, body)[1]["predictions"] == answer["predictions"]


def test_7_3_pixels_are_the_same_after_a_restart(url: str, spec: WorldSpec) -> None:
    first = WorldModelClient(url).predict_samples([sample(spec, 4)])[0]
    with running(create_app(serve_model("desk"))) as address:
        np.testing.assert_array_equal(WorldModelClient(address).predict_samples([sample(spec, 4)])[0], first)


def test_8_the_declared_concurrency_is_supported(url: str, spec: WorldSpec) -> None:
    client = WorldModelClient(url)
    statuses: list[int] = []
    bodies = [request(client, [sample(spec, number, num_actions=5)]) for number in range(2)]
    threads = [threading.Thread(target=lambda b=body: statuses.append(post(url, b)[0])) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200, 200]


def test_8_beyond_the_declared_concurrency_429_says_when_to_retry(
    served: ServedModel, spec: WorldSpec
) -> None:
    app = create_app(served, ServeConfig(max_concurrency=1))
    service, may_go_on = app.state.service, threading.Event()
    predict = service.predictor.predict
    service.predictor.predict = lambda *given: may_go_on.wait(60) and predict(*given)
    with running(app) as address:
        client = WorldModelClient(address)
        answers: list[tuple[int, Any]] = []
        first = threading.Thread(
            target=lambda: answers.append(post(address, request(client, [sample(spec)])))
        )
        first.start()
        while not service.worker.num_jobs:
            time.sleep(0.01)
        body = json.dumps(request(client, [sample(spec)])).encode()
        asked = urllib.request.Request(f"{address}/v1/predict", body, {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=60)
        assert (refused.value.code, refused.value.headers["Retry-After"]) == (429, "1")
        error = json.loads(refused.value.read())["error"]
        assert (error["code"], error["retryable"]) == ("OVERLOADED", True)
        may_go_on.set()
        first.join()
        assert answers[0][0] == 200


def test_9_errors_have_the_published_table() -> None:
    table = {
        "INVALID_ARGUMENT": (400, False),
        "UNAUTHENTICATED": (401, False),
        "PERMISSION_DENIED": (403, False),
        "REQUEST_ID_CONFLICT": (409, False),
        "PAYLOAD_TOO_LARGE": (413, False),
        "UNSUPPORTED_VERSION": (422, False),
        "OVERLOADED": (429, True),
        "INTERNAL": (500, True),
        "NOT_READY": (503, True),
        "DEADLINE_EXCEEDED": (504, True),
    }
    assert {code: (STATUS[code], code in RETRYABLE) for code in STATUS} == table
    body = ServiceError("NOT_READY", "soon").body()
    assert body == {"error": {"code": "NOT_READY", "message": "soon", "request_id": None, "retryable": True}}


def test_9_a_failure_inside_tells_nothing_of_the_inside(spec: WorldSpec) -> None:
    broken = serve_model("desk")
    with running(create_app(broken)) as address:
        client = WorldModelClient(address)
        body = request(client, [sample(spec)])
        broken.model.forward = lambda *_, **__: 1 / 0  # type: ignore[method-assign]
        broken.model.encode = lambda *_, **__: 1 / 0  # type: ignore[method-assign]
        status, answer = post(address, body)
    assert (status, answer["error"]["code"], answer["error"]["retryable"]) == (500, "INTERNAL", True)
    for word in ("division", "/", "Traceback", ".py"):
        assert word not in answer["error"]["message"]


def test_2_nothing_is_redirected(url: str) -> None:
    status, answer, _ = get(url, "/v1/health/")
    assert (status, answer["error"]["code"]) == (404, "INVALID_ARGUMENT")
