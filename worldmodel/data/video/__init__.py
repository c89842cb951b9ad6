"""Video files: a reader of chosen frames by PyAV, and a writer.

container   what the file says about its frames, without decoding
decoders    chosen frames, from files that stay open
frames      `VideoFrames`, the reader that episodes hold
write       H.264 with a checksum
"""

from worldmodel.data.video.container import VideoTable, probe_video
from worldmodel.data.video.frames import VideoFrames, open_video
from worldmodel.data.video.write import write_video

__all__ = ["VideoFrames", "VideoTable", "open_video", "probe_video", "write_video"]
