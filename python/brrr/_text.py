"""Texts: vectors, continuations, tokenizers, chat templates."""

import ctypes
from ctypes import byref, c_int32, c_size_t, c_void_p

from . import _library as c
from ._tensor import Tensor


class Embedder(c.Handle):
    """Makes vectors of texts, with the bits of `brrr embed`.

    model: a folder, a name of the Hub, a GGUF or an ONNX file.
    options: precision, pooling, max_length, batch_tokens, threads, ... (`brrr embed --help`)
    """

    _free = "brrr_embedder_free"

    def __init__(self, model, **options):
        array, count = c.options_of(options)
        super().__init__(c.made("brrr_embedder_open", c.utf8(model, "model"), array, count))

    def embed(self, texts):
        """The vectors of a list of texts (or of one): a Tensor f32 [texts, D]."""
        array, count = c.texts([texts] if isinstance(texts, str) else list(texts), "a text")
        with self._use():
            return Tensor(c.made("brrr_embed", self._open_handle, array, count))

    __call__ = embed


def embed(model, texts, **options):
    """The vectors of texts by an encoder: a Tensor f32 [texts, D]. model: an Embedder, or what
    Embedder() takes, which is then opened for this call alone."""
    if isinstance(model, Embedder):
        if options:
            raise TypeError("options go to Embedder(); this one is open already")
        return model.embed(texts)
    with Embedder(model, **options) as opened:
        return opened.embed(texts)


class Generator(c.Handle):
    """Continues texts, or answers turns of a chat (chat=True).

    model: a folder, a name of the Hub or a GGUF file.
    options: precision, max_new_tokens, temperature, top_k, top_p, seed, chat, system, stop,
        parallel, ... (`brrr generate --help`)
    """

    _free = "brrr_generator_free"

    def __init__(self, model, **options):
        array, count = c.options_of(options)
        super().__init__(c.made("brrr_generator_open", c.utf8(model, "model"), array, count))

    def generate(self, prompt, on_text=None):
        """What follows a prompt, a str; of a list of prompts the list of what follows each.

        on_text: called with further text as it comes: on_text(text) for one prompt, on_text(index,
            text) for a list. Where it returns True, generation ends, and what there is is returned.
            An exception ends it, too, and is raised here; so does Ctrl-C.
        """
        single = isinstance(prompt, (str, bytes))
        array, count = c.texts([prompt] if single else list(prompt), "a prompt")
        raised = []

        def forward(_, index, text):
            try:
                if on_text is None:
                    return 0
                more = text.decode("utf-8", "replace")
                stops = on_text(more) if single else on_text(index, more)
                return 1 if stops is True else 0
            except BaseException as error:  # goes on to the caller, over the library
                raised.append(error)
                return 1

        made = (c_void_p * max(count, 1))()
        with self._use():
            status = c.lib().brrr_generate(self._open_handle, array, count, c.ON_TEXT(forward),
                                           None, made)
            failure = c.error_of(status) if status != 0 else None
        answers = [c.take_text(c_void_p(text)).decode("utf-8", "replace") if text else ""
                   for text in made[:count]]
        if raised:
            raise raised[0]
        if failure is not None and not isinstance(failure, c.Stopped):
            raise failure
        return answers[0] if single else answers

    __call__ = generate


def generate(model, prompt, on_text=None, **options):
    """What follows a prompt, or each of a list of prompts. model: a Generator, or what Generator()
    takes, which is then opened for this call alone. on_text: see Generator.generate()."""
    if isinstance(model, Generator):
        if options:
            raise TypeError("options go to Generator(); this one is open already")
        return model.generate(prompt, on_text)
    with Generator(model, **options) as opened:
        return opened.generate(prompt, on_text)


class Tokenizer(c.Handle):
    """The tokenizer of a model folder, a name of the Hub, a GGUF file, or of tokenizer.json.

    len(tokenizer): entries of the vocabulary; begin, end: ids of the tokens around a text, or None.
    """

    _free = "brrr_tokenizer_free"

    def __init__(self, path):
        super().__init__(c.made("brrr_tokenizer_open", c.utf8(path, "path")))

    def __len__(self):
        return c.lib().brrr_tokenizer_size(self._open_handle)

    @property
    def begin(self):
        token = c.lib().brrr_tokenizer_begin(self._open_handle)
        return None if token < 0 else token

    @property
    def end(self):
        token = c.lib().brrr_tokenizer_end(self._open_handle)
        return None if token < 0 else token

    def encode(self, text, special=False):
        """The ids of a text, a list of int. special: with the tokens that stand before and behind a
        text."""
        if not isinstance(text, (str, bytes)):
            raise TypeError(f"text: expected a text; got {type(text).__name__}")
        encoded = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        with self._use():
            ids = c.made("brrr_tokenizer_encode", self._open_handle, encoded, len(encoded),
                         1 if special else 0)
        return Tensor(ids).tolist()

    def decode_bytes(self, ids):
        """The bytes of tokens: of a part of a text they may end within a character."""
        numbers = [int(token) for token in ids]
        bytes_count, text = c_size_t(), c_void_p()
        with self._use():
            c.call("brrr_tokenizer_decode", self._open_handle, (c_int32 * len(numbers))(*numbers),
                   len(numbers), byref(text), byref(bytes_count))
        try:
            return ctypes.string_at(text.value, bytes_count.value)
        finally:
            c.lib().brrr_text_free(text)

    def decode(self, ids):
        """The text of tokens, a str; what is no UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")


class ChatTemplate(c.Handle):
    """How a model folder writes a conversation."""

    _free = "brrr_chat_template_free"

    def __init__(self, path):
        super().__init__(c.made("brrr_chat_template_open", c.utf8(path, "path")))

    def render(self, messages):
        """The text up to where the next answer begins.

        messages: [{"role": "user", "content": "..."}, ...], or pairs (role, content).
        """
        pairs = [(m["role"], m["content"]) if hasattr(m, "keys") else tuple(m) for m in messages]
        roles, count = c.texts([role for role, _ in pairs], "role")
        contents, _ = c.texts([content for _, content in pairs], "content")
        with self._use():
            return c.take_text(c.made("brrr_chat_template_render", self._open_handle, roles,
                                      contents, count)).decode("utf-8", "replace")


__all__ = ["ChatTemplate", "Embedder", "Generator", "Tokenizer", "embed", "generate"]
