"""The Python package over the built library: BRRR_LIBRARY names it, PYTHONPATH has python/.
Parts that need NumPy, torch or a trained model are skipped where there is none."""

import array
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import brrr

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

needs_numpy = unittest.skipIf(numpy is None, "no numpy")
needs_torch = unittest.skipIf(torch is None, "no torch")
MINILM = os.path.join(os.environ.get("BRRR_MODELS", ""), "minilm")
needs_minilm = unittest.skipUnless(os.path.exists(os.path.join(MINILM, "config.json")),
                                   "no MiniLM in BRRR_MODELS")
BINARY = os.environ.get("BRRR_BINARY", "")
TEXT = "To be, or not to be, that is the question.\n" * 80
TINY = dict(preset="char-cpu", n_layer=1, n_head=2, n_embd=16, context=16, batch_size=2,
            max_steps=6, eval_steps=0, samples=0, warmup_steps=0)


def floats(*numbers):
    return array.array("f", numbers)


def doubling():
    """A module y = 2 x over f32[3]."""
    g = brrr.Graph()
    x = g.input("x", (3,))
    g.output("y", x * 2)
    return g.compile()


class Runs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.text = os.path.join(self.folder.name, "text.txt")
        with open(self.text, "w") as file:
            file.write(TEXT)

    def path(self, *parts):
        return os.path.join(self.folder.name, *parts)

    def options(self, **more):
        return {**TINY, "text": self.text, "output_dir": self.path("runs"), **more}


class Tensors(unittest.TestCase):
    def test_buffers_go_in_and_lists_come_out(self):
        self.assertEqual(doubling()(floats(1, 2, 3)).tolist(), [2, 4, 6])
        self.assertEqual(doubling().run({"x": bytes_of_floats(1, 2, 3)})["y"].tolist(), [2, 4, 6])

    def test_zeros(self):
        t = brrr.Tensor.zeros((2, 3), "i64")
        self.assertEqual((t.shape, t.dtype, t.nbytes), ((2, 3), "i64", 48))
        self.assertEqual(t.tolist(), [[0, 0, 0], [0, 0, 0]])
        self.assertEqual(brrr.Tensor.zeros(()).item(), 0)
        self.assertEqual(brrr.Tensor.zeros((0, 3)).tolist(), [])

    def test_inputs_are_not_copied(self):
        m = doubling()
        room = bytearray(64)
        for skip in (0, 4, 8):
            x = memoryview(room)[skip:skip + 12].cast("f")
            x[2] = 5
            self.assertEqual(m(x).tolist()[2], 10)
        m(m(floats(1, 2, 3)))
        self.assertEqual(m.copied_bytes, 0)

    def test_a_result_goes_in_again(self):
        m = doubling()
        self.assertEqual(m(m(floats(1, 2, 3))).tolist(), [4, 8, 12])

    @needs_numpy
    def test_numpy_shares_the_memory(self):
        t = brrr.Tensor.zeros((2, 2))
        a = t.numpy()
        a[1, 0] = 5
        self.assertEqual(t.tolist(), [[0, 0], [5, 0]])
        self.assertTrue(numpy.shares_memory(numpy.asarray(t), a))
        del t
        gc.collect()
        self.assertEqual(a.tolist(), [[0, 0], [5, 0]])

    @needs_numpy
    def test_numpy_goes_in(self):
        x = numpy.array([1, 2, 3], "f4")
        self.assertEqual(doubling()(x).tolist(), [2, 4, 6])
        x.flags.writeable = False
        m = doubling()
        self.assertEqual(m(x).tolist(), [2, 4, 6])
        self.assertEqual(m.copied_bytes, 0)
        self.assertEqual(doubling()(numpy.arange(6, dtype="f4")[::2]).tolist(), [0, 4, 8])
        self.assertEqual(doubling()([1, 2, 3]).tolist(), [2, 4, 6])

    @needs_numpy
    def test_dlpack_to_numpy(self):
        t = brrr.Tensor.zeros((3,), "i32")
        a = numpy.from_dlpack(t)
        self.assertTrue(numpy.shares_memory(a, t.numpy()))
        del t
        gc.collect()
        self.assertEqual(a.tolist(), [0, 0, 0])
        brrr.Tensor.zeros((3,)).__dlpack__()  # a capsule that nobody takes

    @needs_torch
    def test_torch_shares_the_memory(self):
        t = brrr.Tensor.zeros((2, 2), "bf16")
        a = torch.from_dlpack(t)
        self.assertEqual(a.dtype, torch.bfloat16)
        a[0, 1] = 3
        self.assertEqual(t.numpy().tolist(), [[0, 3], [0, 0]])
        x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        m = doubling()
        self.assertEqual(m(x).tolist(), [2, 4, 6])
        self.assertEqual(m(x[1:].new_ones(3)).tolist(), [2, 2, 2])
        self.assertEqual(m.copied_bytes, 0)
        self.assertEqual(doubling()(torch.arange(6.0)[::2]).tolist(), [0, 4, 8])


def bytes_of_floats(*numbers):
    return memoryview(floats(*numbers)).toreadonly()


class Refusals(unittest.TestCase):
    def test_wrong_types(self):
        m = doubling()
        for wrong in ("text", None, object()):
            with self.assertRaisesRegex(TypeError, "input 'x': expected an array"):
                m.run({"x": wrong})
        with self.assertRaisesRegex(TypeError, "dict of arrays"):
            m.run([1, 2, 3])
        with self.assertRaisesRegex(TypeError, "precision: expected a text"):
            brrr.load("x.onnx", precision=object())
        with self.assertRaises(TypeError):
            brrr.train(on_step=3)
        with self.assertRaises(TypeError):
            brrr.load(3)

    def test_wrong_values(self):
        m = doubling()
        with self.assertRaisesRegex(ValueError, "'x'"):
            m.run({"x": floats(1, 2)})
        with self.assertRaisesRegex(ValueError, "'x'"):
            m.run({"x": array.array("i", [1, 2, 3])})
        with self.assertRaisesRegex(ValueError, "no input 'xx'; there are: x"):
            m.run({"xx": floats(1, 2, 3)})
        g = brrr.Graph()
        g.output("y", g.input("tokens", (3,)) * 2)
        with self.assertRaisesRegex(ValueError, "no input 'token'; did you mean 'tokens'"):
            g.compile().run({"token": floats(1, 2, 3)})
        with self.assertRaisesRegex(ValueError, "precision"):
            brrr.load("x.onnx", precission="bf16")
        with self.assertRaisesRegex(brrr.Error, "nowhere"):
            brrr.load("/nowhere/model.onnx")
        with self.assertRaisesRegex(ValueError, "did you mean 'learning_rate'"):
            brrr.train(learning_rte=1)
        with self.assertRaisesRegex(ValueError, "character 0"):
            brrr.load("a\0b")

    def test_sentences_are_those_of_the_command_line(self):
        if not BINARY:
            self.skipTest("no BRRR_BINARY")
        for options in ({"learning_rate": "fast"}, {"presett": "gpt2"}, {"text": "/nowhere.txt"}):
            with self.assertRaises(brrr.Error) as raised:
                brrr.train(**options)
            words = [w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", v)]
            said = subprocess.run([BINARY, "train", *words], capture_output=True, text=True).stderr
            self.assertIn(str(raised.exception).replace("--", ""), said.replace("--", ""))

    def test_memory(self):
        with self.assertRaises(MemoryError):
            g, _ = regression()
            brrr.Run(g, max_steps=1, memory_limit="1MiB")

    def test_closed(self):
        m = doubling()
        m.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            m(floats(1, 2, 3))

    def test_forks(self):
        doubling()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                doubling()
            except ValueError as error:
                code = 0 if "fork" in str(error) else 2
            os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


def regression():
    """A graph whose loss is the mean of (x w - y)^2, and a batch of it."""
    g = brrr.Graph()
    x, y = g.input("x", (4, 2)), g.input("y", (4, 1))
    w = g.parameter("w", (2, 1), "zeros")
    g.output("loss", g.square(x @ w - y).mean())
    return g, {"x": memoryview(floats(1, 0, 0, 1, 1, 1, 2, 1)).cast("B").cast("f", (4, 2)),
               "y": memoryview(floats(3, -2, 1, 4)).cast("B").cast("f", (4, 1))}


class Graphs(unittest.TestCase):
    def test_ops_and_operators(self):
        g = brrr.Graph()
        x = g.input("x", (2, 3))
        self.assertEqual((x.shape, x.dtype), ((2, 3), "f32"))
        g.output("a", 1 - x / 2 + (-x) ** 2)
        g.output("b", g.matmul(x, x, transpose_b=True))
        g.output("c", g.sum(x, axes=[1], keep=False))
        g.output("d", g.reshape(x, shape=[3, 2]))
        found = g.compile()(memoryview(floats(1, 2, 3, 4, 5, 6)).cast("B").cast("f", (2, 3)))
        self.assertEqual(found["a"].tolist()[0], [1.5, 4, 8.5])
        self.assertEqual(found["b"].tolist(), [[14, 32], [32, 77]])
        self.assertEqual(found["c"].tolist(), [6, 15])
        self.assertEqual(found["d"].tolist(), [[1, 2], [3, 4], [5, 6]])

    def test_gradient(self):
        g = brrr.Graph()
        x = g.input("x", (3,))
        g.output("dx", g.gradient(g.square(x).mean(), x))
        self.assertEqual([round(n, 6) for n in g.compile()(floats(3, 6, 9)).tolist()], [2, 4, 6])

    def test_text(self):
        g, batch = regression()
        again = brrr.Graph(str(g))
        loss = again.compile(weights={"w": memoryview(floats(3, -2)).cast("B").cast("f", (2, 1))})
        self.assertEqual(loss.run(batch)["loss"].item(), 0)

    def test_refusals(self):
        g, other = brrr.Graph(), brrr.Graph()
        x = g.input("x", (2, 3))
        with self.assertRaisesRegex(ValueError, "did you mean 'matmul'"):
            g.matmull(x, x)
        with self.assertRaisesRegex(ValueError, "matmul"):
            g.matmul(x, x)
        with self.assertRaisesRegex(ValueError, "another graph"):
            other.gelu(x)
        with self.assertRaisesRegex(TypeError, "expected a value"):
            g.gelu(3)
        with self.assertRaisesRegex(ValueError, "init must be"):
            g.parameter("w", (2,), "xavier")
        with self.assertRaisesRegex(ValueError, "f33"):
            g.input("z", (2,), "f33")


class Training(Runs):
    def test_a_graph_of_ones_own(self):
        g, batch = regression()
        run = brrr.Run(g, learning_rate=0.1, max_steps=400, weight_decay=0, warmup_steps=0,
                       lr_scheduler_type="constant")
        self.assertEqual((run.max_steps, run.steps_done, run.accumulation), (400, 0, 1))
        self.assertGreater(run.plan().arena_bytes, 0)
        for _ in range(400):
            step = run.step(batch)
        self.assertEqual(step.step, 400)
        self.assertLess(run.evaluate(batch), 1e-3)
        w = [row[0] for row in run.parameter("w").tolist()]
        self.assertAlmostEqual(w[0], 3, 1)
        self.assertAlmostEqual(w[1], -2, 1)
        with self.assertRaisesRegex(ValueError, "no input 'yy'"):
            run.step({"x": batch["x"], "yy": batch["y"]})
        with self.assertRaisesRegex(ValueError, "micro-batches"):
            run.step([batch, batch])
        run.save(self.path("out"))
        self.assertEqual(sorted(os.listdir(self.path("out"))), ["graph.txt", "model.safetensors"])

    def test_evaluation_graphs(self):
        g, batch = regression()
        run = brrr.Run(g, learning_rate=0.1, max_steps=10)
        for _ in range(5):
            run.step(batch)
        found = run.evaluate([batch, batch], outputs=["loss"])
        self.assertEqual(found.rows, 8)
        self.assertAlmostEqual(found["loss"], run.evaluate(batch), 6)
        half = brrr.Graph()
        x, y = half.input("x", (2, 2)), half.input("y", (2, 1))
        off = x @ half.parameter("w", (2, 1), "zeros") - y
        half.output("square", half.square(off).mean())
        half.output("off", off.mean())
        parts = [{name: memoryview(values).cast("B")[at * len(values.tobytes()) // 2:
                                                     (at + 1) * len(values.tobytes()) // 2]
                  .cast("f", (2, values.shape[1])) for name, values in batch.items()}
                 for at in (0, 1)]
        whole = run.evaluate(parts, outputs=["square", "off"], graph=half)
        self.assertAlmostEqual(whole["square"], found["loss"], 5)
        total = (run.evaluate(parts[:1], outputs="square", graph=half) +
                 run.evaluate(parts[1], outputs="square", graph=half))
        self.assertEqual((total.rows, round(total["square"], 5)), (4, round(whole["square"], 5)))
        self.assertEqual(run.copied_bytes, 0)
        with self.assertRaisesRegex(ValueError, "did you mean 'square'"):
            run.evaluate(parts, outputs=["squar"], graph=half)
        with self.assertRaisesRegex(ValueError, "got none"):
            run.evaluate([], outputs=["loss"])
        with self.assertRaises(TypeError):
            run.evaluate(batch, outputs=["loss"], graph="graph")
        with self.assertRaises(TypeError):
            run.evaluate(batch, graph=half)

    def test_timed_steps_show_their_kernels(self):
        g, batch = regression()
        run = brrr.Run(g, max_steps=3)
        with self.assertRaisesRegex(ValueError, "no step was timed"):
            run.profile()
        run.time_steps()
        run.step(batch)
        run.time_steps(False)
        run.step(batch)
        self.assertIn("1 step timed", run.profile())

    def test_the_plan_forecasts_the_step(self):
        g, batch = regression()
        seconds = brrr.Run(g, max_steps=1).plan().step_seconds
        self.assertTrue(seconds is None or 0 < seconds < 1, seconds)

    def test_accumulated_micro_batches(self):
        g, batch = regression()
        options = dict(max_steps=2, gradient_accumulation_steps=2, learning_rate=0.1)
        run = brrr.Run(g, **options)
        self.assertAlmostEqual(run.step([batch, batch]).loss, (9 + 4 + 1 + 16) / 4, 5)

    def test_the_loop_has_the_bits_of_train(self):
        seen = []
        result = brrr.train(on_step=seen.append, **self.options())
        with brrr.Run(**self.options()) as run:
            steps = list(run)
            run.save(self.path("out"))
        self.assertEqual([s.loss for s in steps], [s.loss for s in seen])
        self.assertEqual(result["steps"], 6)
        with open(os.path.join(result["run_dir"], "model.safetensors"), "rb") as file:
            trained = file.read()
        with open(self.path("out", "model.safetensors"), "rb") as file:
            self.assertEqual(file.read(), trained)

    def test_the_bits_of_the_command_line(self):
        if not BINARY:
            self.skipTest("no BRRR_BINARY")
        result = brrr.train(**self.options())
        words = [f"--{k.replace('_', '-')}={v}" for k, v in
                 self.options(output_dir=self.path("cli")).items()]
        done = subprocess.run([BINARY, "train", "--json", *words], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["train_loss"], result["train_loss"])

    def test_state(self):
        with brrr.Run(**self.options()) as run:
            for _ in range(3):
                run.step()
            run.save_state(self.path("state"))
            last = [run.step().loss for _ in range(3)]
        with brrr.Run(**self.options()) as run:
            run.load_state(self.path("state", os.listdir(self.path("state"))[0]))
            self.assertEqual(run.steps_done, 3)
            self.assertEqual([step.loss for step in run], last)

    def test_a_callback_stops(self):
        result = brrr.train(on_step=lambda s: s.step == 2, **self.options())
        self.assertEqual(result["steps"], 2)

    def test_an_exception_of_a_callback(self):
        def fails(step):
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            brrr.train(on_step=fails, **self.options())
        # The run was saved and can go on.
        self.assertEqual(brrr.train(resume=self.path("runs"))["steps"], 6)

    def test_ctrl_c_saves(self):
        for on_step in (None, lambda step: None):
            with tempfile.TemporaryDirectory() as folder:
                run = os.path.join(folder, "run")
                timer = threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                with self.assertRaises(KeyboardInterrupt):
                    brrr.train(on_step, **self.options(max_steps=10**6, output_dir=run))
                timer.join()
                self.assertTrue(any(name.startswith("checkpoint-") for name in os.listdir(run)),
                                os.listdir(run))
        self.assertIs(signal.getsignal(signal.SIGINT), signal.default_int_handler)

    def test_ctrl_c_ends_a_loop_of_ones_own(self):
        with brrr.Run(**self.options(max_steps=10**6)) as run:
            timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with self.assertRaises(KeyboardInterrupt):
                for _ in run:
                    pass
            timer.join()
            done = run.steps_done
            run.save_state(self.path("state"))
            self.assertEqual(os.listdir(self.path("state")), [f"checkpoint-{done:06}"])
            self.assertEqual(run.step().step, done + 1)

    def test_runs_in_two_threads(self):
        found = {}

        def loop(seed):
            with brrr.Run(**self.options(seed=seed)) as run:
                found[seed] = [step.loss for step in run]

        loop(1)
        alone = found.pop(1)
        threads = [threading.Thread(target=loop, args=(seed,)) for seed in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(found[1], alone)
        self.assertNotEqual(found[2], alone)


class Texts(Runs):
    def model(self):
        return brrr.train(**self.options())["run_dir"]

    def test_generation(self):
        model = self.model()
        with brrr.Generator(model, max_new_tokens=20, temperature=0) as g:
            pieces, numbered = [], []
            whole = g.generate("To be", pieces.append)
            self.assertEqual("".join(pieces), whole)
            self.assertEqual(len(whole), 20)
            both = g.generate(["To be", "that"], lambda i, text: numbered.append((i, text)))
            self.assertEqual(both[0], whole)
            self.assertEqual("".join(t for i, t in numbered if i == 1), both[1])
            self.assertLess(len(g.generate("To be", lambda text: True)), 20)
            with self.assertRaisesRegex(KeyError, "mine"):
                g.generate("To be", lambda text: {}["mine"])
            with self.assertRaisesRegex(RuntimeError, "in use"):
                g.generate("To be", lambda text: g.generate("x"))
            self.assertEqual(g.generate("To be"), whole)
        self.assertEqual(brrr.generate(model, "To be", max_new_tokens=20, temperature=0), whole)

    def test_tokenizer(self):
        tokenizer = brrr.Tokenizer(self.model())
        ids = tokenizer.encode("not to be")
        self.assertEqual(tokenizer.decode(ids), "not to be")
        self.assertEqual(tokenizer.decode_bytes(ids), b"not to be")
        self.assertEqual(tokenizer.encode(""), [])
        self.assertGreater(len(tokenizer), max(ids))
        with self.assertRaises(TypeError):
            tokenizer.encode(3)

    def test_chat_template(self):
        model = self.model()
        with self.assertRaisesRegex(ValueError, "no chat template"):
            brrr.ChatTemplate(model)
        with open(os.path.join(model, "chat_template.jinja"), "w") as file:
            file.write("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
        chat = brrr.ChatTemplate(model)
        self.assertEqual(chat.render([{"role": "user", "content": "hi"}, ("assistant", "ho")]),
                         "<user>hi<assistant>ho")

    @needs_minilm
    def test_vectors(self):
        texts = ["A text.", "Another one, which is longer."]
        vectors = brrr.embed(MINILM, texts)
        self.assertEqual((vectors.shape, vectors.dtype), ((2, 384), "f32"))
        if BINARY:
            said = subprocess.run([BINARY, "embed", "--model", MINILM, "--output",
                                   self.path("v.npy")], input="\n".join(texts), text=True,
                                  capture_output=True)
            self.assertEqual(said.returncode, 0, said.stderr)
            with open(self.path("v.npy"), "rb") as file:
                self.assertEqual(file.read()[-vectors.nbytes:],
                                 ctypes.string_at(ctypes.addressof(vectors._bytes()),
                                                  vectors.nbytes))


class Package(unittest.TestCase):
    def test_the_import_loads_neither_numpy_nor_the_library(self):
        # What makes an import slow; how long it takes is measured in docs/library.md.
        code = ("import sys, brrr; "
                "print(sorted({'numpy', 'torch', 'asyncio'} & set(sys.modules)), "
                "any('libbrrr' in line for line in open('/proc/self/maps')))")
        self.assertEqual(subprocess.check_output([sys.executable, "-c", code], text=True).strip(),
                         "[] False")

    def test_other_libraries(self):
        def said(code, **environment):
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                                  env={**os.environ, **environment})
            self.assertEqual(done.returncode, 1)
            return done.stderr.strip().splitlines()[-1]

        version = "brrr.version()"
        self.assertRegex(said("import brrr; " + version, BRRR_LIBRARY="libc.so.6"),
                         "ImportError: libc.so.6 is not Brrr's library")
        self.assertRegex(said("import brrr; " + version, BRRR_LIBRARY="/nowhere.so"),
                         "ImportError: Brrr's library /nowhere.so could not be loaded")
        newer = "import brrr; brrr._library._STATUS['brrr_of_later'] = []; " + version
        self.assertRegex(said(newer), r"version \d\S+, is older than this package: it has no "
                                      "brrr_of_later")
        other = "import brrr; brrr._library.ABI_VERSION += 1; " + version
        self.assertRegex(said(other), r"compiled for interface \d+ of Brrr, and this library, "
                                      r"version \d\S+, has interface \d+")

    def test_version(self):
        self.assertRegex(brrr.version(), r"^\d+\.\d+\.\d+$")

    def test_notes(self):
        lines = []
        brrr.on_note(lines.append)
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "text.txt")
                with open(path, "w") as file:
                    file.write(TEXT)
                brrr.train(**TINY, text=path, output_dir=folder)
        finally:
            brrr.on_note(None)
        self.assertTrue(any("parameters" in line for line in lines), lines)

    def test_the_program(self):
        if not BINARY:
            self.skipTest("no BRRR_BINARY")
        said = subprocess.run([sys.executable, "-m", "brrr", "--version"], capture_output=True,
                              text=True)
        self.assertEqual(said.stdout.strip(), f"brrr {brrr.version()}")
        code = subprocess.run([sys.executable, "-m", "brrr", "trian"], capture_output=True)
        self.assertEqual(code.returncode, 2)


if __name__ == "__main__":
    unittest.main()
