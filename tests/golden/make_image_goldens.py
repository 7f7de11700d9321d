#!/usr/bin/env python3
"""Pictures of every kind as files, and what Pillow and torchvision make of them.

Writes images.safetensors beside this script:
  file:NAME                u8 [bytes]: a picture file
  rgb:NAME, grey:NAME      u8 [H, W, 3], u8 [H, W]: Pillow's convert("RGB") and convert("L"), upright
  resize:FILTER:L,T,W,H:WxH        u8: a part of file:photo.png, resized by Pillow
  jitter:NAME:FACTOR, operation:NAME:...  u8 [H, W, 3]: file:photo.png, changed by torchvision
  evaluation:SHORTER:WxH   f32 [3, H, W]: file:photo.png as torchvision's evaluation sees it

    pip install numpy==2.4.6 pillow==13.0.0 torch==2.15.0 torchvision==0.29.2 safetensors==0.8.0
    python3 tests/golden/make_image_goldens.py
"""

import io
import pathlib
import struct
import zlib

import numpy as np
import torch
import torchvision.transforms.v2.functional as F
from PIL import Image, ImageOps
from safetensors.numpy import save_file
from torchvision.transforms import InterpolationMode

rng = np.random.default_rng(7)
tensors = {}


def photo(width, height, noise=24):
    """Smooth colours, an edge, and noise."""
    y, x = np.mgrid[0:height, 0:width]
    red = 127 + 110 * np.sin(x / 7.0) * np.cos(y / 9.0)
    green = 255.0 * x / width
    blue = np.where((x - width / 2) ** 2 + (y - height / 2) ** 2 < (height / 3) ** 2, 230, 20)
    pixels = np.stack([red, green, blue], -1) + rng.normal(0, noise, (height, width, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def add(name, data):
    """The file, and what Pillow decodes."""
    tensors["file:" + name] = np.frombuffer(data, np.uint8).copy()
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    tensors["rgb:" + name] = np.asarray(image.convert("RGB")).copy()
    tensors["grey:" + name] = np.asarray(image.convert("L")).copy()


def add_saved(name, image, **how):
    out = io.BytesIO()
    image.save(out, **how)
    add(name, out.getvalue())


ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def png(samples, depth, colour, interlaced=False, chunks=()):
    """A PNG of integer samples [H, W, channels]."""

    def packed(part):
        rows = b""
        for row in part.reshape(part.shape[0], -1):
            if depth == 16:
                data = row.astype(">u2").tobytes()
            elif depth == 8:
                data = row.astype(np.uint8).tobytes()
            else:
                bits = "".join(format(int(v), f"0{depth}b") for v in row)
                bits += "0" * (-len(bits) % 8)
                data = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
            rows += b"\0" + data
        return rows

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = samples.shape[:2]
    raw = b""
    if interlaced:
        for x, y, dx, dy in ADAM7:
            part = samples[y::dy, x::dx]
            if part.size:
                raw += packed(part)
    else:
        raw = packed(samples)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + b"".join(chunk(*c) for c in chunks)
        + chunk(b"IDAT", zlib.compress(raw, 9))
        + chunk(b"IEND", b"")
    )


def exif(orientation, order=">"):
    mark = b"MM\0*" if order == ">" else b"II*\0"
    tiff = mark + struct.pack(order + "IHHHIHHI", 8, 1, 0x112, 3, 1, orientation, 0, 0)
    return tiff


pixels = photo(23, 17)
colour, grey = Image.fromarray(pixels), Image.fromarray(pixels[:, :, 1])

# JPEG
for name, sampling in (("444", 0), ("422", 1), ("420", 2)):
    add_saved(f"{name}.jpg", colour, format="JPEG", subsampling=sampling, quality=88)
add_saved("progressive.jpg", colour, format="JPEG", progressive=True, quality=80)
add_saved("grey.jpg", grey, format="JPEG", quality=90)
ink = Image.fromarray(np.concatenate([pixels, 255 - pixels[:, :, :1] // 2], -1), "CMYK")
add_saved("cmyk.jpg", ink, format="JPEG", quality=90)
for orientation in range(1, 9):
    order = ">" if orientation % 2 else "<"
    add_saved(f"turned{orientation}.jpg", colour, format="JPEG", subsampling=0, quality=75,
              exif=b"Exif\0\0" + exif(orientation, order))

# Larger ones without goldens: parts of them are compared with the whole
wide = photo(131, 97, 9)
for name, how in (("444", {"subsampling": 0}), ("422", {"subsampling": 1}), ("420", {"subsampling": 2}),
                  ("-restarts", {"subsampling": 2, "restart_marker_rows": 1}),
                  ("-progressive", {"progressive": True})):
    out = io.BytesIO()
    Image.fromarray(wide).save(out, "JPEG", quality=70, **how)
    tensors[f"file:large{name}.jpg"] = np.frombuffer(out.getvalue(), np.uint8).copy()
for name, image in (("grey", Image.fromarray(wide[:, :, 0])),
                    ("cmyk", Image.fromarray(np.concatenate([wide, wide[:, :, :1]], -1), "CMYK"))):
    out = io.BytesIO()
    image.save(out, "JPEG", quality=70)
    tensors[f"file:large-{name}.jpg"] = np.frombuffer(out.getvalue(), np.uint8).copy()

# PNG
levels = rng.integers(0, 1 << 16, (17, 23, 4))
for depth in (1, 2, 4, 8):
    add(f"grey{depth}.png", png(levels[:, :, :1] >> (16 - depth), depth, 0))
for name, channels, kind in (("rgb", 3, 2), ("grey-alpha", 2, 4), ("rgba", 4, 6)):
    add(f"{name}8.png", png(levels[:, :, :channels] >> 8, 8, kind))
add("rgb16.png", png(levels[:, :, :3], 16, 2))
add("rgba16.png", png(levels, 16, 6))
add("interlaced.png", png(levels[:, :, :3] >> 8, 8, 2, True))
add("interlaced-grey2.png", png(levels[:, :, :1] >> 14, 2, 0, True))
palette = rng.integers(0, 256, 48).astype(np.uint8).tobytes()
add("palette4.png", png(levels[:, :, :1] >> 12, 4, 3, chunks=[(b"PLTE", palette)]))
add("palette-transparent.png", png(levels[:, :, :1] >> 12, 8, 3,
                                   chunks=[(b"PLTE", palette), (b"tRNS", bytes(range(0, 160, 10)))]))
add("grey-key.png", png(levels[:, :, :1] >> 8, 8, 0, chunks=[(b"tRNS", struct.pack(">H", 77))]))
add("gamma.png", png(levels[:, :, :3] >> 8, 8, 2, chunks=[(b"gAMA", struct.pack(">I", 100000))]))
add("turned6.png", png(levels[:, :, :3] >> 8, 8, 2, chunks=[(b"eXIf", exif(6))]))
add("one.png", png(levels[:1, :1, :3] >> 8, 8, 2))
# Pillow clips grey of 16 bits at 255; the upper 8 bits are meant.
deep = png(levels[:, :, :1], 16, 0)
tensors["file:grey16.png"] = np.frombuffer(deep, np.uint8).copy()
upper = (levels[:, :, 0] >> 8).astype(np.uint8)
tensors["grey:grey16.png"] = upper
tensors["rgb:grey16.png"] = np.repeat(upper[:, :, None], 3, 2)

# WebP
alpha = Image.fromarray(np.concatenate([pixels, pixels[:, :, :1]], -1), "RGBA")
add_saved("lossy.webp", colour, format="WebP", quality=80)
add_saved("lossless.webp", colour, format="WebP", lossless=True)
add_saved("alpha.webp", alpha, format="WebP", quality=80)
add_saved("alpha-lossless.webp", alpha, format="WebP", lossless=True, exact=True)
add_saved("turned8.webp", colour, format="WebP", lossless=True, exif=b"Exif\0\0" + exif(8))
second = Image.fromarray(255 - pixels)
add_saved("animated.webp", colour, format="WebP", save_all=True, append_images=[second], lossless=True)

# PNM
add_saved("bytes.ppm", colour, format="PPM")
add_saved("bytes.pgm", grey, format="PPM")
add_saved("bits.pbm", grey.convert("1"), format="PPM")
small = pixels[:3, :4]
text = "\n".join(" ".join(str(v) for v in row.reshape(-1)) for row in small)
add("text.ppm", f"P3\n# a comment\n4 3\n255\n{text}\n".encode())
text = "\n".join(" ".join(str(v) for v in row) for row in small[:, :, 0])
add("text.pgm", f"P2 4 3 255\n{text}\n".encode())
add("text.pbm", b"P1\n4 3\n0 1 1 0\n1111\n0 0 1 0\n")
add("seven.ppm", b"P6 4 3 7\n" + (small >> 5).tobytes())

# Resized parts
large = photo(61, 47)
tensors["file:photo.png"] = np.frombuffer(png(large.astype(int), 8, 2), np.uint8).copy()
source = Image.fromarray(large)
FILTERS = {"nearest": Image.NEAREST, "bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}
for box in ((0, 0, 61, 47), (5, 3, 40, 41), (20, 10, 3, 2), (60, 0, 1, 47)):
    for width, height in ((32, 32), (7, 5), (61, 20), (40, 60), (1, 1)):
        for name, how in FILTERS.items():
            part = source.crop((box[0], box[1], box[0] + box[2], box[1] + box[3]))
            done = np.asarray(part.resize((width, height), how))
            tensors[f"resize:{name}:{','.join(map(str, box))}:{width}x{height}"] = done.copy()

# Evaluation
for shorter, width, height in ((40, 32, 32), (32, 32, 32), (36, 30, 24)):
    seen = F.center_crop(F.resize(source, [shorter], InterpolationMode.BILINEAR), [height, width])
    seen = F.to_dtype(F.pil_to_tensor(seen), torch.float32, scale=True)
    seen = F.normalize(seen, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    tensors[f"evaluation:{shorter}:{width}x{height}"] = np.ascontiguousarray(seen.numpy())

# Colours
for factor in (0.0, 0.4, 1.0, 1.7):
    for name, change in (("brightness", F.adjust_brightness), ("contrast", F.adjust_contrast),
                         ("saturation", F.adjust_saturation)):
        tensors[f"jitter:{name}:{factor}"] = np.asarray(change(source, factor)).copy()
OPERATIONS = {
    "autocontrast": (F.autocontrast, ()), "equalize": (F.equalize, ()), "posterize:3": (F.posterize, (3,)),
    "solarize:100": (F.solarize, (100,)), "sharpness:0.3": (F.adjust_sharpness, (0.3,)),
    "sharpness:1.8": (F.adjust_sharpness, (1.8,)), "invert": (F.invert, ()),
}
for name, (change, values) in OPERATIONS.items():
    tensors["operation:" + name] = np.asarray(change(source, *values)).copy()
for name, angle, shift, shear in (("rotate:17", 17, (0, 0), (0, 0)), ("rotate:-30", -30, (0, 0), (0, 0)),
                                  ("shift_x:5", 0, (5, 0), (0, 0)), ("shift_y:-4", 0, (0, -4), (0, 0))):
    if name.startswith("rotate"):
        done = F.rotate(source, angle)
    else:
        done = F.affine(source, angle=0.0, translate=list(shift), scale=1.0, shear=[0.0, 0.0])
    tensors["operation:" + name] = np.asarray(done).copy()

save_file(tensors, pathlib.Path(__file__).parent / "images.safetensors")
