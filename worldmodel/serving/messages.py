"""The JSON of WorldArena's Track-2 interface, version 1.0, and of the session websocket.

Unknown fields are ignored; the others are checked strictly. Numbers must be finite.
"""

from typing import Annotated, Literal, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from worldmodel.serving.errors import first_fault, invalid

API_VERSION = "1.0"
MAX_ROWS = 4096  # actions of one sample, before the profile's own limit is checked
MAX_COLUMNS = 256  # of an action
# Limits on separators in a message (values, lists, names), checked first: the parser may use up to a kilobyte
# for each.
MAX_SIGNS = {",": 1 << 18, "[": 1 << 14, ":": 1 << 14}
Number = Annotated[float, Field(allow_inf_nan=False, strict=False)]
# Stop at the first error: a million of them would use gigabytes.
Row = Annotated[list[Number], Field(max_length=MAX_COLUMNS, fail_fast=True)]
Rows = Annotated[list[Row], Field(max_length=MAX_ROWS, fail_fast=True)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Text = Annotated[str, Field(max_length=256)]
M = TypeVar("M", bound=BaseModel)


def _uuid_text(text: str) -> str:
    """The text itself, which is echoed unchanged."""
    UUID(text)
    return text


RequestId = Annotated[str, Field(max_length=64), AfterValidator(_uuid_text)]


class Message(BaseModel):
    """An incoming message."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, protected_namespaces=())


class Picture(Message):
    """An RGB picture as the base64 text of a PNG file."""

    encoding: Literal["png_base64"]
    color_space: Literal["RGB"]
    height: int = Field(ge=1, le=4096)
    width: int = Field(ge=1, le=4096)
    channels: Literal[3]
    data: str = Field(min_length=1)


class CameraText(Message):
    """An extension of the interface: the camera, for models that draw commands into the picture."""

    intrinsics: list[Row] = Field(min_length=3, max_length=3)  # 3 x 3, pixels of the pictures sent
    extrinsics: list[Row] = Field(min_length=3, max_length=3)  # 3 x 4, world to camera, OpenCV axes, metres


class Context(Message):
    """Frames and actions before the first action to predict."""

    frames: list[Picture] = Field(min_length=1, max_length=64, fail_fast=True)  # oldest first
    actions: Rows  # one less than frames
    states: Rows | None = None  # one per frame; the first is read by models with start_state
    instruction: str | None = Field(default=None, max_length=4096)  # accepted and not used
    camera: CameraText | None = None


class Sample(Message):
    """One prediction to make."""

    sample_id: Text
    seed: Seed
    context: Context
    actions: Rows


class PredictRequest(Message):
    """The body of POST /v1/predict."""

    api_version: Text
    request_id: RequestId
    model_version: Text
    profile_id: Text
    samples: list[Sample] = Field(min_length=1, max_length=1024, fail_fast=True)


class Identified(Message):
    """The request id of a request that is invalid otherwise, for its error."""

    request_id: RequestId


class Prediction(BaseModel):
    """One frame per action."""

    sample_id: str
    frames: list[Picture]


class PredictResponse(BaseModel):
    """The response to POST /v1/predict."""

    model_config = ConfigDict(protected_namespaces=())
    api_version: str = API_VERSION
    request_id: str
    model_version: str
    predictions: list[Prediction]


class OpenMessage(Message):
    """Begins a session."""

    type: Literal["open"]
    profile_id: Text
    seed: Seed = 0
    context: Context


class StepMessage(Message):
    """A block of actions; steps are numbered from 0 without gaps."""

    type: Literal["step"]
    step_id: int = Field(ge=0)
    actions: Rows


class CloseMessage(Message):
    """Ends a session."""

    type: Literal["close"]


def parse_message(kind: type[M], text: bytes | bytearray) -> M:
    """Parse a message, or raise its first error; a message with too many values is not parsed."""
    for sign, most in MAX_SIGNS.items():
        count = text.count(sign.encode())
        if count > most:
            raise invalid(f"a message has at most {most} of the sign {sign!r}, got {count}")
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        raise invalid(first_fault(error)) from error
