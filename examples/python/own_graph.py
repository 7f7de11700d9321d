"""A model of one's own, a loop of one's own: learns which quadrant a point lies in."""

import array
import random

import brrr

B, WIDTH, CLASSES = 64, 32, 4
g = brrr.Graph()
x = g.input("x", (B, 2))
y = g.input("y", (B,), "i32")
hidden = g.gelu(g.linear(x, WIDTH, name="hidden"))
logits = g.linear(hidden, CLASSES, name="logits")
losses, _ = g.cross_entropy(logits, y)
g.output("loss", losses.mean())

numbers = random.Random(1)


def batch():
    points = [(numbers.uniform(-1, 1), numbers.uniform(-1, 1)) for _ in range(B)]
    flat = array.array("f", [number for point in points for number in point])
    classes = array.array("i", [2 * (a > 0) + (b > 0) for a, b in points])
    return {"x": memoryview(flat).cast("B").cast("f", (B, 2)), "y": classes}


with brrr.Run(g, loss="loss", learning_rate=0.02, max_steps=300) as run:
    print(f"the run needs {run.plan().arena_bytes / 1024:.0f} KiB")
    for _ in range(run.max_steps):
        step = run.step(batch())
        if step.step % 100 == 0:
            print(f"step {step.step}: loss {step.loss:.3f}")
    print(f"loss on new points: {run.evaluate(batch()):.3f}")
