"""Trains a small GPT on a text, prints the loss, and continues a prompt: train.py TEXT FOLDER."""

import sys

import brrr


def show(step):
    if step.step % 5 == 0:
        print(f"step {step.step}: loss {step.loss:.3f}, {1000 * step.seconds:.1f} ms")


text, folder = sys.argv[1:]
result = brrr.train(show, preset="char-cpu", text=text, max_steps=20, samples=0,
                    output_dir=folder)
print("validation loss", round(result["val_loss"], 3))
print(brrr.generate(folder, "To be", max_new_tokens=40, on_text=None))
