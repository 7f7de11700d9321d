"""Training: a loop of one's own, or `brrr train` from begin to end."""

import json
from collections import namedtuple
from ctypes import byref, c_double, c_int64, c_void_p

from . import _library as c
from ._graph import Graph
from ._tensor import Tensor, named, to_tensor

Step = namedtuple("Step", "step loss grad_norm learning_rate loss_scale seconds tokens")
Step.__doc__ = """A step that is done. step: steps done, this one included; loss: mean over the step's
micro-batches; grad_norm: before clipping (not finite: the step changed nothing); loss_scale: of fp16
gradients, else 1; seconds: waiting for data included; tokens: trained on in this step."""
Plan = namedtuple("Plan", [name for name, _ in c.PlanStruct._fields_] + ["step_seconds"])
Plan.__doc__ = """Bytes of a run: of parameters, optimizer state and activations in the arena, of the arena
(exact), of the process at its peak (forecast), and the limit that it has to keep. step_seconds: how
long a step will take, a forecast; None where it is unknown."""


class Evaluation(dict):
    """Means by the names of outputs; rows: of how many rows. Sums of evaluations are weighted by
    rows."""

    def __init__(self, means, rows):
        super().__init__(means)
        self.rows = rows

    def __add__(self, other):
        if not isinstance(other, Evaluation):
            return NotImplemented
        rows = self.rows + other.rows
        return Evaluation({name: (self[name] * self.rows + other[name] * other.rows) / max(rows, 1)
                           for name in self}, rows)


def _step_of(struct):
    return Step(*[getattr(struct, name) for name in Step._fields])


class Run(c.Handle):
    """A training run whose loop you write; options are those of `brrr train`, with "_" for "-".

    Of Brrr's own models (preset or init_from, on the data of text, data or task):

        with brrr.Run(preset="char-cpu", text="notes.txt", max_steps=100) as run:
            for step in run:
                print(step.step, step.loss)
            run.save("out")

    Of your own graph, whose output `loss` is the mean over a micro-batch:

        run = brrr.Run(g, loss="loss", learning_rate=1e-3, max_steps=100)
        for batch in batches:                # dicts of arrays by the names of the graph's inputs
            step = run.step(batch)

    Raises ValueError for an option that is wrong, and MemoryError, before anything is allocated,
    where the run does not fit.
    """

    _free = "brrr_run_free"

    def __init__(self, graph=None, loss="loss", **options):
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"graph: expected a brrr.Graph; got {type(graph).__name__}")
        array, count = c.options_of(options)
        super().__init__(c.made("brrr_run_create", graph._open_handle if graph else None,
                                c.utf8(loss, "loss"), array, count))

    @property
    def max_steps(self):
        """Steps that the options ask for."""
        return c.lib().brrr_run_max_steps(self._open_handle)

    @property
    def steps_done(self):
        """Optimizer steps done."""
        return c.lib().brrr_run_steps_done(self._open_handle)

    @property
    def accumulation(self):
        """Micro-batches of a step."""
        return c.lib().brrr_run_accumulation(self._open_handle)

    def step(self, batch=None):
        """One optimizer step. Returns a Step.

        batch: None: the next batches of the run's data. For a graph: a dict of arrays by name, or a
            list of `accumulation` of them, one for each micro-batch.
        """
        done = c.StepStruct()
        if batch is None:
            names, tensors, count, keep = None, None, 0, None
        else:
            portions = [batch] if hasattr(batch, "items") else list(batch)
            if len(portions) != self.accumulation:
                raise ValueError(f"a step takes {self.accumulation} micro-batches; got "
                                 f"{len(portions)}")
            if any(p.keys() != portions[0].keys() for p in portions):
                raise ValueError("the micro-batches of a step have the same names")
            order = list(portions[0])
            parts = [named({name: p[name] for name in order}, "input") for p in portions]
            names, count, keep = parts[0][0], len(order), parts
            pointers = [pointer for _, array, _, _ in parts for pointer in array]
            tensors = (c_void_p * len(pointers))(*pointers)
        with self._use():
            c.call("brrr_run_step", self._open_handle, names, tensors, count, byref(done))
        del keep
        return _step_of(done)

    def __iter__(self):
        """The remaining steps on the run's own data, each done when it is asked for."""
        while self.steps_done < self.max_steps:
            yield self.step()

    def evaluate(self, batch=None, outputs=None, graph=None):
        """The loss on the run's validation data, or, without dropout, on one micro-batch for a
        graph.

        outputs: names of outputs f32[] of the run's graph, or of another `graph` whose parameters are
            the run's by their names. Then `batch` is an iterable of batches, and the result an
            Evaluation: the mean of each output, weighted by rows (the first axis of a batch's first
            array). Dropout is off; the graph is compiled at its first use and kept.
        """
        if outputs is not None:
            return self._evaluate_graph(batch, outputs, graph)
        if graph is not None:
            raise TypeError("outputs: expected the names of the graph's outputs to average")
        loss = c_double()
        names, tensors, count, keep = named(batch or {}, "input")
        with self._use():
            c.call("brrr_run_evaluate", self._open_handle, names, tensors, count, byref(loss))
        del keep
        return loss.value

    def _evaluate_graph(self, batches, outputs, graph):
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"graph: expected a brrr.Graph; got {type(graph).__name__}")
        outputs = [outputs] if isinstance(outputs, str) else list(outputs)
        wanted, wanted_count = c.texts(outputs, "the name of an output")
        sums, rows = [0.0] * wanted_count, 0
        for batch in [batches] if hasattr(batches, "items") else batches:
            names, tensors, count, keep = named(batch, "input")
            means, batch_rows = (c_double * wanted_count)(), c_int64()
            with self._use():
                c.call("brrr_run_evaluate_graph", self._open_handle,
                       graph._open_handle if graph else None, wanted, wanted_count, names, tensors,
                       count, 1, means, byref(batch_rows))
            del keep
            sums = [total + batch_rows.value * mean for total, mean in zip(sums, means)]
            rows += batch_rows.value
        if rows == 0:
            raise ValueError("an evaluation takes batches; got none")
        return Evaluation({name: total / rows for name, total in zip(outputs, sums)}, rows)

    def plan(self, measure=False):
        """What the run needs: a Plan. The step's time is a forecast by measured rates of this
        machine's processor. measure: where they were never measured, measures them now, in a few
        seconds, and keeps them."""
        plan, seconds = c.PlanStruct(), c_double()
        c.call("brrr_run_plan", self._open_handle, byref(plan))
        c.call("brrr_run_forecast", self._open_handle, 1 if measure else 0, byref(seconds))
        return Plan(*[getattr(plan, name) for name, _ in c.PlanStruct._fields_],
                    seconds.value or None)

    @property
    def copied_bytes(self):
        """Bytes of arrays of your own batches that the library copied: see Module.copied_bytes."""
        return c.lib().brrr_run_copied_bytes(self._open_handle)

    def time_steps(self, on=True):
        """Times every kernel of the steps from here on, or no more."""
        with self._use():
            c.call("brrr_run_time_steps", self._open_handle, 1 if on else 0)

    def profile(self):
        """What the kernels of the timed steps took, the slowest first: a line each."""
        with self._use():
            return c.take_text(c.made("brrr_run_profile", self._open_handle)).decode()

    @property
    def rank(self):
        """Which of the processes that train together this one is, from 0."""
        return c.lib().brrr_run_rank(self._open_handle)

    @property
    def ranks(self):
        """How many processes train together: brrr launch, mpirun, torchrun or srun starts them."""
        return c.lib().brrr_run_ranks(self._open_handle)

    def gather_for_metrics(self, array, rows=None):
        """The rows (first axis) of all ranks in their order, on each of them: a Tensor. rows: at
        most so many, so that what a last batch repeats does not count twice."""
        own = to_tensor(array, "what ranks gather")
        with self._use():
            return Tensor(c.made("brrr_run_gather", self._open_handle, own._open_handle,
                                 -1 if rows is None else rows))

    def parameter(self, name):
        """The numbers of a parameter now: a Tensor of its own memory."""
        with self._use():
            return Tensor(c.made("brrr_run_parameter", self._open_handle, c.utf8(name, "name")))

    def save(self, folder):
        """Writes the model's folder (Hugging Face), of a graph model.safetensors and graph.txt."""
        with self._use():
            c.call("brrr_run_save", self._open_handle, c.utf8(folder, "folder"))

    def save_state(self, folder):
        """Writes FOLDER/checkpoint-NNNNNN: parameters, optimizer, step and position in the data."""
        with self._use():
            c.call("brrr_run_save_state", self._open_handle, c.utf8(folder, "folder"))

    def load_state(self, checkpoint):
        """Goes on where save_state() was called, to the same bits."""
        with self._use():
            c.call("brrr_run_load_state", self._open_handle, c.utf8(checkpoint, "checkpoint"))


def train(on_step=None, **options):
    """`brrr train` from begin to end, its run folder included.

    on_step: called with a Step after each step. Where it returns True, the run saves a checkpoint and
        ends. An exception ends it in the same way and is raised here.
    options: those of `brrr train`, with "_" for "-": preset="char-cpu", text="notes.txt", max_steps=100,
        output_dir="runs", ...; None leaves one out.
    Returns the dict that `brrr train --json` prints. Ctrl-C ends the run after the step that is being
    done; a checkpoint is saved and KeyboardInterrupt raised, and brrr.train(resume=RUN) goes on.
    """
    if on_step is not None and not callable(on_step):
        raise TypeError(f"on_step: expected a function; got {type(on_step).__name__}")
    raised, asked = [], []

    def forward(_, step):
        try:
            if on_step is not None and on_step(_step_of(step.contents)) is True:
                asked.append(True)
                return 1
            return 0
        except BaseException as error:  # goes on to the caller, over the library
            raised.append(error)
            return 1

    array, count = c.options_of(options)
    text = c_void_p()
    status = c.lib().brrr_train(array, count, c.ON_STEP(forward), None, byref(text))
    failure = c.error_of(status) if status != 0 else None
    result = json.loads(c.take_text(text)) if text.value else {}
    if raised:
        raise raised[0]
    if isinstance(failure, c.Stopped):
        if not asked:
            raise KeyboardInterrupt(f"the run is saved in {result.get('run_dir', '')}")
    elif failure is not None:
        raise failure
    return result


__all__ = ["Evaluation", "Plan", "Run", "Step", "train"]
