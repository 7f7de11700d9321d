#!/usr/bin/env python3
"""Pictures a second of Brrr's loader and of torchvision with Pillow: 500 x 375 JPEGs, decoded, cropped at random to
224 x 224, mirrored at random and normalised, by as many workers, in turns.

    pip install torch torchvision pillow numpy
    cmake -DBRRR_BENCH=ON -B build/release && ninja -C build/release bench_image_loader
    python3 bench/peers/image_loader.py --rounds 5
"""

import argparse
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from torchvision import transforms

ROOT = pathlib.Path(__file__).resolve().parents[2]


def make_pictures(folder, count):
    """Noise of every scale, as dense as photographs: files of about 90 KB."""
    rng = np.random.default_rng(1)
    for i in range(count):
        picture = np.zeros((375, 500, 3), np.float32)
        for cells, strength in ((4, 90), (16, 50), (64, 28), (256, 14)):
            noise = rng.normal(0, strength, (cells * 3 // 4, cells, 3)).astype(np.float32)
            layers = [np.asarray(Image.fromarray(noise[:, :, c]).resize((500, 375), Image.BICUBIC)) for c in range(3)]
            picture += np.stack(layers, -1)
        path = folder / f"class{i % 2}" / f"{i:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(picture + 128, 0, 255).astype(np.uint8)).save(path, quality=92)
    sizes = [p.stat().st_size for p in folder.rglob("*.jpg")]
    print(f"{count} pictures of {statistics.mean(sizes) / 1000:.0f} KB", flush=True)


class Peer:
    def __init__(self, folder, workers, batch):
        change = transforms.Compose([
            transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
            transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])])
        pictures = torchvision.datasets.ImageFolder(folder, change)
        self.loader = torch.utils.data.DataLoader(pictures, batch, shuffle=True, num_workers=workers,
                                                  persistent_workers=workers > 0)

    def rate(self):
        """Over one epoch; the workers are there already."""
        count, begin = 0, time.perf_counter()
        for pixels, _ in self.loader:
            count += len(pixels)
        return count / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--program", default=str(ROOT / "build/release/bench/bench_image_loader"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, Pillow {PIL.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_pictures(folder, options.pictures)
        batches = options.pictures // options.batch
        for workers in options.workers:
            peer = Peer(folder, workers, options.batch)
            peer.rate()
            rates = {"Brrr": [], "cached": [], "torchvision": []}
            for _ in range(options.rounds):
                command = [options.program, name, str(workers), str(options.batch), str(batches), "imagenet"]
                for key, more in (("Brrr", []), ("cached", [str(1 << 30)])):
                    out = subprocess.run(command + more, check=True, capture_output=True, text=True).stdout
                    rates[key].append(float(out.split()[0]))
                rates["torchvision"].append(peer.rate())
            for key, list_of in rates.items():
                print(f"workers {workers} {key}: {statistics.median(list_of):.0f} pictures/s "
                      f"({min(list_of):.0f} to {max(list_of):.0f})")
            ratios = [a / b for a, b in zip(rates["Brrr"], rates["torchvision"])]
            print(f"workers {workers} ratio: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                  flush=True)


if __name__ == "__main__":
    main()
