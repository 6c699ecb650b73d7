"""Just enough PNG to shrink one: eight bits a channel, not interlaced. A real shop takes Pillow."""

import struct
import zlib

_SIGNATURE = b"\x89PNG\r\n\x1a\n"

#: Bytes of a pixel, by colour type: grey, RGB, grey with alpha, RGB with alpha.
_CHANNELS = {0: 1, 2: 3, 4: 2, 6: 4}

#: No picture has more pixels: it would not fit into the memory of a worker.
_LARGEST = 20_000_000


class NotAPictureError(ValueError):
    """These bytes are no PNG that can be read here."""


def shrink(image, *, longest):
    """A copy of the PNG *image* whose longer side has *longest* pixels.

    Raises:
        NotAPictureError: It is none.
    """
    width, height, color, lines = _read(image)
    channels = _CHANNELS[color]
    step = max(1, -(-max(width, height) // longest))
    small = []
    for y in range(0, height, step):
        line = bytearray()
        for x in range(0, width * channels, step * channels):
            for channel in range(channels):
                # The mean of a square of step by step pixels, or of what is left of it at the edge.
                square = [row[x + channel : x + step * channels : channels] for row in lines[y : y + step]]
                line.append(sum(map(sum, square)) // sum(map(len, square)))
        small.append(bytes(line))
    return write(small, color=color)


def write(lines, *, color=2):
    """The PNG of *lines*, each the bytes of its pixels."""
    width, height = len(lines[0]) // _CHANNELS[color], len(lines)
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + line for line in lines))
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _read(image):
    if not image.startswith(_SIGNATURE):
        raise NotAPictureError("this is no PNG.")
    try:
        chunks = list(_chunks(image))
        width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", dict(chunks)[b"IHDR"])
        if depth != 8 or interlaced or color not in _CHANNELS:
            raise NotAPictureError("only PNGs of eight bits a channel, without palette and interlacing, are read.")
        if not 0 < width * height <= _LARGEST:
            raise NotAPictureError(f"{width} by {height} pixels are too many.")
        size = (width * _CHANNELS[color] + 1) * height
        data = zlib.decompressobj().decompress(b"".join(data for name, data in chunks if name == b"IDAT"), size)
        if len(data) != size:
            raise NotAPictureError("the picture is cut.")
    except (KeyError, struct.error, zlib.error) as problem:
        raise NotAPictureError(f"the picture is damaged: {problem}") from problem
    return width, height, color, _unfiltered(data, width, _CHANNELS[color])


def _chunks(image):
    at = len(_SIGNATURE)
    while at < len(image):
        size, name = struct.unpack_from(">I4s", image, at)
        yield name, image[at + 8 : at + 8 + size]
        at += size + 12


def _unfiltered(data, width, channels):
    stride = width * channels
    above, lines = bytes(stride), []
    for start in range(0, len(data), stride + 1):
        line = bytearray(data[start + 1 : start + 1 + stride])
        _undo(data[start], line, above, channels)
        above = bytes(line)
        lines.append(above)
    return lines


def _undo(kind, line, above, channels):
    """Undo one line's filter (PNG specification, section 9) in place."""
    if kind > 4:
        raise NotAPictureError("the picture is damaged.")
    for x in range(len(line) if kind else 0):
        left, corner = (line[x - channels], above[x - channels]) if x >= channels else (0, 0)
        up = above[x]
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = up
        elif kind == 3:
            guess = (left + up) // 2
        else:
            near = left + up - corner
            guess = min((left, up, corner), key=lambda value: abs(near - value))
        line[x] = (line[x] + guess) & 0xFF
