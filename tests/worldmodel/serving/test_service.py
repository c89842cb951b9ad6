"""The checklist of WorldArena's Track-2 interface, one test a line, and what else a service must stand."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.malformed import malformed
from tests.support.service import running
from worldmodel.cli import main
from worldmodel.environments.spaces import WorldSpec
from worldmodel.models.model import WorldModel
from worldmodel.pipelines.rollout import RolloutPipeline
from worldmodel.serving.app import create_app
from worldmodel.serving.client import RefusedError, RemoteSession, WorldModelClient
from worldmodel.serving.config import ServeConfig
from worldmodel.serving.pictures import encode_picture
from worldmodel.serving.predictor import ServedModel
from worldmodel.serving.run import serve_model
from worldmodel.types import to_uint8

TOKEN = "a token of the test only"


@pytest.fixture(scope="module")
def served() -> ServedModel:
    return serve_model("desk")


@pytest.fixture(scope="module")
def url(served: ServedModel) -> Iterator[str]:
    with running(create_app(served, ServeConfig(max_request_bytes=2 << 20, max_batch_size=3))) as address:
        yield address


@pytest.fixture(scope="module")
def spec(served: ServedModel) -> WorldSpec:
    return WorldSpec.of(served.model.contract, served.model.normalizer)


@pytest.fixture(scope="module")
def model(served: ServedModel) -> WorldModel:
    return served.model


def sample(spec: WorldSpec, number: int = 0, *, num_actions: int = 4, context: int = 1) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    frames = rng.integers(0, 256, (context, spec.height, spec.width, 3), np.uint8)
    actions = rng.uniform(spec.low, spec.high, (context - 1 + num_actions, len(spec.low))).tolist()
    pictures = [encode_picture(frame) for frame in frames]
    return {
        "sample_id": f"sample-{number}",
        "seed": 1000 + number,
        "context": {
            "frames": pictures,
            "actions": actions[: context - 1],
            "states": None,
            "instruction": None,
        },
        "actions": actions[context - 1 :],
    }


def request(client: WorldModelClient, samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "api_version": "1.0",
        "request_id": str(uuid.uuid4()),
        "model_version": client.capabilities()["model_version"],
        "profile_id": client.profile_id,
        "samples": samples,
    }


def post(url: str, body: dict[str, Any] | bytes, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(
        f"{url}/v1/predict", data, {"Content-Type": "application/json"} | (headers or {})
    )
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_health_and_capabilities_say_what_is_served(url: str, spec: WorldSpec) -> None:
    client = WorldModelClient(url)
    health = client.health()
    assert (health["status"], health["api_version"]) == ("ready", "1.0")
    manifest = client.capabilities()
    assert manifest["model_version"] == health["model_version"]
    profile = manifest["profiles"][0]
    assert (profile["image"]["height"], profile["image"]["width"]) == (spec.height, spec.width)
    assert profile["action"]["dimension"] == len(spec.action_names)
    assert manifest["determinism"] == {"seed_supported": True, "same_seed_same_pixels": True}
    assert manifest["limits"]["max_batch_size"] == 3


def test_a_prediction_is_the_pipelines_own_and_does_not_depend_on_its_batch(
    url: str, model: WorldModel, spec: WorldSpec, served: ServedModel
) -> None:
    client = WorldModelClient(url)
    samples = [sample(spec, 0), sample(spec, 1, num_actions=7), sample(spec, 2)]
    together = client.predict_samples(samples)
    assert [len(frames) for frames in together] == [4, 7, 4]
    alone = client.predict_samples([samples[1]])[0]
    np.testing.assert_array_equal(together[1], alone)
    reordered = client.predict_samples(samples[::-1])
    for one, other in zip(together, reordered[::-1], strict=True):
        np.testing.assert_array_equal(one, other)
    rng = np.random.default_rng(0)
    first = torch.from_numpy(rng.integers(0, 256, (1, 1, spec.height, spec.width, 3), np.uint8))
    actions = rng.uniform(spec.low, spec.high, (1, 4, len(spec.low)))
    expected = RolloutPipeline(model)(
        first.permute(0, 1, 4, 2, 3),
        actions,
        embodiment=spec.embodiment,
        num_inference_steps=1,
        generator=[torch.Generator().manual_seed(1000)],
        camera=served.camera,
    )
    np.testing.assert_array_equal(together[0], to_uint8(expected.frames[0, 1:]).permute(0, 2, 3, 1).numpy())


def test_a_longer_context_brings_its_own_actions(url: str, spec: WorldSpec) -> None:
    client = WorldModelClient(url)
    long = sample(spec, 5, context=5)
    assert len(client.predict_samples([long])[0]) == 4
    long["context"]["actions"] = long["context"]["actions"][:-1]
    status, body = post(url, request(client, [long]))
    assert status == 400
    assert "samples[0].context.actions: expected 4" in body["error"]["message"]


def test_the_same_request_id_gives_the_same_bytes_and_other_content_a_conflict(
    url: str, spec: WorldSpec
) -> None:
    client = WorldModelClient(url)
    asked = request(client, [sample(spec)])
    first = post(url, asked)
    again = post(url, dict(reversed(asked.items())))  # the same content in another order
    assert first == again
    assert first[0] == 200
    assert first[1]["request_id"] == asked["request_id"]
    asked["samples"][0]["seed"] += 1
    status, body = post(url, asked)
    assert (status, body["error"]["code"]) == (409, "REQUEST_ID_CONFLICT")
    assert body["error"]["request_id"] == asked["request_id"]


def test_other_versions_and_profiles_are_not_supported(url: str, spec: WorldSpec) -> None:
    client = WorldModelClient(url)
    for field, value in (("api_version", "2.0"), ("model_version", "other"), ("profile_id", "other")):
        status, body = post(url, request(client, [sample(spec)]) | {field: value})
        assert (status, body["error"]["code"]) == (422, "UNSUPPORTED_VERSION")
        assert field in body["error"]["message"]


def test_limits_are_those_of_the_manifest(url: str, spec: WorldSpec) -> None:
    client = WorldModelClient(url)
    status, body = post(url, request(client, [sample(spec, number) for number in range(4)]))
    assert (status, body["error"]["code"]) == (400, "INVALID_ARGUMENT")
    assert "at most 3" in body["error"]["message"]
    status, body = post(url, b" " * (2 << 20) + b"{}")
    assert (status, body["error"]["code"]) == (413, "PAYLOAD_TOO_LARGE")
    status, body = post(url, request(client, [sample(spec, num_actions=65)]))
    assert "expected 1 to 64, got 65" in body["error"]["message"]
    status, body = post(url, request(client, [sample(spec)]), {"Content-Type": "text/plain"})
    assert status == 400


def test_a_thousand_malformed_requests_are_refused_with_a_sentence(url: str, spec: WorldSpec) -> None:
    client = WorldModelClient(url)
    good = request(client, [sample(spec, num_actions=2)])
    for body in malformed(good, 1000):
        status, answer = post(url, body)
        assert status in (400, 409, 413, 422), (status, body[:300])
        assert len(answer["error"]["message"]) > 10, answer
        assert "Traceback" not in answer["error"]["message"]
    assert post(url, good)[0] == 200


def test_unknown_paths_have_the_same_form_of_error(url: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{url}/v1/nothing", timeout=10)
    assert "error" in json.loads(refused.value.read())
    with urllib.request.urlopen(f"{url}/docs", timeout=10) as page:
        text = page.read().decode()
    assert "http" not in text.replace("https://", "X").replace(
        "<html", ""
    )  # nothing is loaded from elsewhere
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=10) as page:
        assert "/v1/predict" in json.loads(page.read())["paths"]


def test_other_sites_may_not_use_the_service(url: str, spec: WorldSpec) -> None:
    client = WorldModelClient(url)
    body = request(client, [sample(spec)])
    assert post(url, body, {"Origin": "http://elsewhere.example"})[0] == 403
    assert post(url, body, {"Host": "elsewhere.example"})[0] == 403


def test_a_token_is_asked_of_everybody(served: ServedModel, spec: WorldSpec) -> None:
    with pytest.raises(ValueError, match="other machines"):
        ServeConfig(host="0.0.0.0")
    with running(create_app(served, ServeConfig(token=TOKEN))) as address:
        for wrong in ("", "wrong"):
            with pytest.raises(RefusedError, match="UNAUTHENTICATED"):
                WorldModelClient(address, wrong).capabilities()
        first = np.zeros((1, spec.height, spec.width, 3), np.uint8)
        client = WorldModelClient(address, TOKEN)
        assert client.predict(first, np.tile(spec.low, (2, 1))).shape == (2, spec.height, spec.width, 3)
        with client.open(first) as session:
            assert len(session.step(np.tile(spec.low, (4, 1)))) == 4
        anonymous = WorldModelClient(address, profile_id=client.profile_id)
        with pytest.raises(RefusedError, match="UNAUTHENTICATED"):
            anonymous.open(first)


def test_a_session_streams_what_the_pipeline_streams(
    url: str, served: ServedModel, model: WorldModel, spec: WorldSpec
) -> None:
    rng = np.random.default_rng(3)
    first = rng.integers(0, 256, (1, spec.height, spec.width, 3), np.uint8)
    blocks = rng.uniform(spec.low, spec.high, (3, 4, len(spec.low)))
    client = WorldModelClient(url)
    with client.open(first, seed=9) as session:
        made = [session.step(block) for block in blocks]
    own = RolloutPipeline(model).open(
        torch.from_numpy(first).permute(0, 3, 1, 2)[None],
        embodiment=spec.embodiment,
        camera=served.camera,
        num_inference_steps=1,
        generator=[torch.Generator().manual_seed(9)],
    )
    for block, frames in zip(blocks, made, strict=True):
        expected = to_uint8(own.step(torch.from_numpy(block)[None])[0]).permute(0, 2, 3, 1)
        np.testing.assert_array_equal(frames, expected.numpy())


def test_a_bad_message_leaves_the_session_as_it_was(url: str, spec: WorldSpec) -> None:
    client = WorldModelClient(url)
    first = np.zeros((1, spec.height, spec.width, 3), np.uint8)
    block = np.tile(spec.low, (4, 1))
    with client.open(first) as session, client.open(first) as other:
        expected = other.step(block)
        for wrong in (np.zeros((4, 3)), np.tile(spec.low, (3, 1)), np.zeros((0, len(spec.low)))):
            with pytest.raises(RefusedError, match="INVALID_ARGUMENT"):
                session.step(wrong)
        for message in ({"type": "step", "step_id": 7, "actions": block.tolist()}, {"type": "x"}, {}):
            with pytest.raises(RefusedError, match="INVALID_ARGUMENT"):
                session._talk(message)
        np.testing.assert_array_equal(session.step(block), expected)


def test_sessions_are_bounded_and_silent_ones_closed(served: ServedModel, spec: WorldSpec) -> None:
    first = np.zeros((1, spec.height, spec.width, 3), np.uint8)
    with running(create_app(served, ServeConfig(max_sessions=1, idle_s=0.4))) as address:
        client = WorldModelClient(address)
        session = client.open(first)
        with pytest.raises(RefusedError, match="OVERLOADED"):
            client.open(first)
        time.sleep(0.8)
        with pytest.raises((RefusedError, ConnectionError)):
            session.step(np.tile(spec.low, (4, 1)))
        session.reopen()
        assert len(session.step(np.tile(spec.low, (4, 1)))) == 4
        session.close()


def test_too_many_at_once_are_told_so_and_nobody_is_lost(served: ServedModel, spec: WorldSpec) -> None:
    with running(create_app(served, ServeConfig(max_concurrency=1))) as address:
        client = WorldModelClient(address)
        expected = {
            number: client.predict_samples([sample(spec, number, num_actions=32)])[0] for number in range(3)
        }
        statuses: list[int] = []
        bodies = [request(client, [sample(spec, number % 3, num_actions=32)]) for number in range(6)]
        threads = [
            threading.Thread(target=lambda body=body: statuses.append(post(address, body)[0]))
            for body in bodies
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 429}
        answers: dict[int, np.ndarray] = {}

        def patient(number: int) -> None:
            asked = [sample(spec, number % 3, num_actions=32)]
            answers[number] = WorldModelClient(address).predict_samples(asked)[0]

        threads = [threading.Thread(target=patient, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(6):
            np.testing.assert_array_equal(answers[number], expected[number % 3])


def test_a_restarted_service_goes_on_with_the_clients_frames(served: ServedModel, spec: WorldSpec) -> None:
    first = np.zeros((1, spec.height, spec.width, 3), np.uint8)
    block = np.tile(spec.low, (4, 1))
    with running(create_app(served)) as address:
        session: RemoteSession = WorldModelClient(address).open(first)
        session.step(block)
    with pytest.raises(ConnectionError, match="reopen"):
        session.step(block)
    with running(create_app(served)) as address:
        session.client = WorldModelClient(address)
        session.reopen()
        assert len(session.step(block)) == 4
        session.close()


@pytest.mark.parametrize("command", ["serve", "play"])
def test_a_used_port_is_said_before_anything_is_loaded(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([command, "desk", "--port", str(port)]) == 2
    out, err = capsys.readouterr()
    assert "http" not in out
    assert f"127.0.0.1:{port} cannot be used" in err


def test_a_wrong_model_gets_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "no/such/model", "--port", "0"]) == 2
    assert "http" not in capsys.readouterr().out


def test_the_client_refuses_frames_of_another_kind(url: str) -> None:
    with pytest.raises(ValueError, match=r"expected uint8 in 0 .. 255, got float64"):
        WorldModelClient(url).open(np.zeros((1, 64, 64, 3)))
