"""Training: a loop of one's own, or `brrr train` from begin to end."""

import json
from collections import namedtuple
from ctypes import byref, c_double, c_void_p

from . import _library as c
from ._graph import Graph
from ._tensor import Tensor, named

Step = namedtuple("Step", "step loss grad_norm learning_rate loss_scale seconds tokens")
Step.__doc__ = """A step that is done. step: steps done, this one included; loss: mean over the step's
micro-batches; grad_norm: before clipping (not finite: the step changed nothing); loss_scale: of fp16
gradients, else 1; seconds: waiting for data included; tokens: trained on in this step."""
Plan = namedtuple("Plan", [name for name, _ in c.PlanStruct._fields_])
Plan.__doc__ = """Bytes of a run: of parameters, optimizer state and activations in the arena, of the arena
(exact), of the process at its peak (forecast), and the limit that it has to keep."""


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

    def evaluate(self, batch=None):
        """The loss on the run's validation data, or, without dropout, on one micro-batch for a
        graph."""
        loss = c_double()
        names, tensors, count, keep = named(batch or {}, "input")
        with self._use():
            c.call("brrr_run_evaluate", self._open_handle, names, tensors, count, byref(loss))
        del keep
        return loss.value

    def plan(self):
        """What the run needs, in bytes: a Plan."""
        plan = c.PlanStruct()
        c.call("brrr_run_plan", self._open_handle, byref(plan))
        return Plan(*[getattr(plan, name) for name in Plan._fields])

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


__all__ = ["Plan", "Run", "Step", "train"]
