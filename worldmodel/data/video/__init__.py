"""Video files: reading selected frames by PyAV or decord, and writing.

container metadata about the frames, without decoding decoders selected frames, from files that stay open
decord_frames the choice of a decoder, and decord's frames
frames `VideoFrames`, the reader that episodes hold write H.264 with a checksum
"""

from worldmodel.data.video.container import MissingVideoError, VideoTable, probe_video
from worldmodel.data.video.frames import VideoFrames, open_video
from worldmodel.data.video.write import write_video

__all__ = ["MissingVideoError", "VideoFrames", "VideoTable", "open_video", "probe_video", "write_video"]
