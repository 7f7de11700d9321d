/* Brrr for C, and for every language that calls C: modules, tokenizers, generation, graphs and
 * training steps.
 *
 * - Objects are opaque handles. What a function named *_create, *_open or *_make writes through its
 *   last parameter belongs to the caller, who gives it back by the *_free function of its type.
 *   Every *_free function takes NULL.
 * - A function that can fail returns a brrr_status. Where it is not BRRR_OK, brrr_last_error() has
 *   one line for people, and nothing was written through the last parameter; but where a callback
 *   stopped brrr_generate() or brrr_train() (BRRR_STOPPED), what there is was written.
 * - A NULL handle is refused with BRRR_USAGE.
 * - Texts are UTF-8 and end with a zero byte. Sizes are counts of elements, never of bytes, unless
 *   a name says bytes. Tensors are row-major.
 * - An object is used by one thread at a time; different objects may be used by different threads.
 *   They share one team of threads and take turns in it.
 * - Options are pairs of texts with the names and values of the command line, without dashes
 *   ("precision", "bf16"); docs/options.md lists them. An unknown name is refused with the nearest.
 * - After fork() the child must not call anything but brrr_version(): threads do not survive a
 *   fork. Every function that computes returns BRRR_USAGE there.
 */
#ifndef BRRR_BRRR_C_H
#define BRRR_BRRR_C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define BRRR_API __attribute__((visibility("default")))
#else
#define BRRR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when a function changes or goes. Functions that are added leave it. */
#define BRRR_ABI_VERSION 1

typedef enum brrr_status {
  BRRR_OK = 0,
  BRRR_FAILED = 1,    /* a file, a shape or a value is wrong */
  BRRR_USAGE = 2,     /* a call, an option or a name is wrong */
  BRRR_NO_MEMORY = 3, /* it does not fit into the memory limit */
  BRRR_STOPPED = 4,   /* a callback asked to stop */
  BRRR_INTERNAL = 5   /* Brrr broke a promise of its own: please report it */
} brrr_status;

/* "0.1.0" */
BRRR_API const char* brrr_version(void);
/* BRRR_ABI_VERSION of the library. */
BRRR_API int brrr_abi_version(void);
/* BRRR_USAGE, naming both versions, unless the library has the interface `header`, which is
 * BRRR_ABI_VERSION where the caller was compiled. */
BRRR_API brrr_status brrr_require_abi(int header);
/* What went wrong in the last call of this thread that failed, "" before. Valid until the next call
 * of this thread. */
BRRR_API const char* brrr_last_error(void);
/* Gives back a text that a function wrote as char*. */
BRRR_API void brrr_text_free(char* text);
/* Gets each line that the command line would write to standard error. */
typedef void (*brrr_on_note)(void* context, const char* line);
/* NULL: lines are dropped, as they are from the start. Holds for all threads. */
BRRR_API void brrr_set_on_note(brrr_on_note on_note, void* context);

typedef struct brrr_option {
  const char* name;
  const char* value;
} brrr_option;

/* ---- tensors ------------------------------------------------------------------------------- */

typedef enum brrr_dtype {
  BRRR_F32 = 0,
  BRRR_F64 = 1,
  BRRR_BF16 = 2,
  BRRR_F16 = 3,
  BRRR_I32 = 4,
  BRRR_I64 = 5,
  BRRR_I8 = 6,
  BRRR_U8 = 7,
  BRRR_BOOL = 8, /* a byte: 0 or 1 */
  BRRR_F8E4M3 = 9,
  BRRR_F8E5M2 = 10,
  BRRR_I16 = 11,
  BRRR_U16 = 12,
  BRRR_U32 = 13,
  BRRR_U64 = 14
} brrr_dtype;

typedef struct brrr_tensor brrr_tensor;

/* Zeros. `rank` sizes; rank 0: one element. */
BRRR_API brrr_status brrr_tensor_create(brrr_dtype dtype, const int64_t* sizes, int rank,
                                        brrr_tensor** tensor);
/* A tensor over memory of the caller, row by row, which must stay until `release` is called, once,
 * with `context`. `release` may be NULL: then the memory must outlive the tensor and everything
 * that was made of it. */
BRRR_API brrr_status brrr_tensor_borrow(brrr_dtype dtype, const int64_t* sizes, int rank,
                                        void* data, void (*release)(void* context), void* context,
                                        brrr_tensor** tensor);
BRRR_API void brrr_tensor_free(brrr_tensor* tensor);
BRRR_API brrr_dtype brrr_tensor_dtype(const brrr_tensor* tensor);
BRRR_API int brrr_tensor_rank(const brrr_tensor* tensor);
/* brrr_tensor_rank() sizes, valid as long as the tensor. */
BRRR_API const int64_t* brrr_tensor_sizes(const brrr_tensor* tensor);
BRRR_API void* brrr_tensor_data(const brrr_tensor* tensor);
BRRR_API size_t brrr_tensor_bytes(const brrr_tensor* tensor);

/* DLPack (dlpack.h of dmlc, version 0.8): the struct of that name. */
struct DLManagedTensor;
/* The tensor's memory without a copy. The memory stays until the consumer calls the deleter. */
BRRR_API brrr_status brrr_tensor_to_dlpack(brrr_tensor* tensor, struct DLManagedTensor** managed);
/* Takes over a tensor of host memory without a copy; its deleter is called when the last tensor
 * that shares it goes. Its strides must be row-major. */
BRRR_API brrr_status brrr_tensor_from_dlpack(struct DLManagedTensor* managed, brrr_tensor** tensor);

/* Tensors by name, in order: what a run gives. */
typedef struct brrr_tensors brrr_tensors;
BRRR_API void brrr_tensors_free(brrr_tensors* tensors);
BRRR_API size_t brrr_tensors_count(const brrr_tensors* tensors);
BRRR_API const char* brrr_tensors_name(const brrr_tensors* tensors, size_t index);
/* A tensor of the caller's own, which shares the memory. */
BRRR_API brrr_status brrr_tensors_get(const brrr_tensors* tensors, size_t index,
                                      brrr_tensor** tensor);

/* ---- modules: whatever runs by the names of its inputs ----------------------------------------
 */

typedef struct brrr_module brrr_module;

typedef struct brrr_port {
  const char* name;
  brrr_dtype dtype;
  int has_shape; /* 0: nothing is known of the shape */
  int rank;
  const int64_t* sizes; /* -1: any size */
  int is_optional;
} brrr_port;

/* Opens a model folder, a name of the Hugging Face Hub (in its cache, or downloaded), a GGUF file,
 * an ONNX file or a .brrr file. Options: precision, device, memory-limit, threads, disable-pass.
 * Weights stay in the files, which must not change. */
BRRR_API brrr_status brrr_module_open(const char* path, const brrr_option* options, size_t count,
                                      brrr_module** module);
BRRR_API void brrr_module_free(brrr_module* module);
/* Valid as long as the module. */
BRRR_API size_t brrr_module_input_count(const brrr_module* module);
BRRR_API size_t brrr_module_output_count(const brrr_module* module);
BRRR_API brrr_status brrr_module_input(const brrr_module* module, size_t index, brrr_port* port);
BRRR_API brrr_status brrr_module_output(const brrr_module* module, size_t index, brrr_port* port);
/* Computes the outputs that `wanted` names (none: all). The first run with inputs of new shapes
 * compiles a program for them; programs are kept. */
BRRR_API brrr_status brrr_module_run(brrr_module* module, const char* const* names,
                                     brrr_tensor* const* inputs, size_t count,
                                     const char* const* wanted, size_t wanted_count,
                                     brrr_tensors** outputs);
/* Bytes of inputs that were copied since the module was opened. An input is read where it lies, and
 * not copied, unless the module runs on another device than the processor, its address is no
 * multiple of an element's size, or shapes depend on data, so that the run consists of several
 * programs. Outputs have memory of their own. */
BRRR_API int64_t brrr_module_copied_bytes(const brrr_module* module);

/* Vectors of texts, f32 [texts, D], with the bits of `brrr embed`. */
typedef struct brrr_embedder brrr_embedder;
/* Options: those of `brrr embed` that concern the model (precision, pooling, max-length, ...). */
BRRR_API brrr_status brrr_embedder_open(const char* path, const brrr_option* options, size_t count,
                                        brrr_embedder** embedder);
BRRR_API void brrr_embedder_free(brrr_embedder* embedder);
BRRR_API brrr_status brrr_embed(brrr_embedder* embedder, const char* const* texts, size_t count,
                                brrr_tensor** vectors);

/* Texts continued, or turns of a chat answered. */
typedef struct brrr_generator brrr_generator;
/* Options: those of `brrr generate` (precision, max-new-tokens, temperature, seed, chat, system,
 * stop, ...). */
BRRR_API brrr_status brrr_generator_open(const char* path, const brrr_option* options, size_t count,
                                         brrr_generator** generator);
BRRR_API void brrr_generator_free(brrr_generator* generator);
/* Gets further text of answer number `answer`, as it comes. Not 0: stop. */
typedef int (*brrr_on_text)(void* context, size_t answer, const char* text);
/* Answers all prompts at once, as many as the option parallel allows; each has the text that it has
 * alone. texts[i], for the caller to free with brrr_text_free(), is what follows prompts[i].
 * BRRR_STOPPED where `on_text`, which may be NULL, said so; texts then hold what there is. */
BRRR_API brrr_status brrr_generate(brrr_generator* generator, const char* const* prompts,
                                   size_t count, brrr_on_text on_text, void* context, char** texts);

/* ---- tokenizers -------------------------------------------------------------------------------
 */

typedef struct brrr_tokenizer brrr_tokenizer;
/* That of a model folder, a name of the Hub, a GGUF file, or tokenizer.json. */
BRRR_API brrr_status brrr_tokenizer_open(const char* path, brrr_tokenizer** tokenizer);
BRRR_API void brrr_tokenizer_free(brrr_tokenizer* tokenizer);
BRRR_API int32_t brrr_tokenizer_size(const brrr_tokenizer* tokenizer);
/* -1: there is none. */
BRRR_API int32_t brrr_tokenizer_begin(const brrr_tokenizer* tokenizer);
BRRR_API int32_t brrr_tokenizer_end(const brrr_tokenizer* tokenizer);
/* i32 [tokens]. `bytes` of text, which may hold zero bytes. special: not 0: with what stands before
 * and behind a text. */
BRRR_API brrr_status brrr_tokenizer_encode(const brrr_tokenizer* tokenizer, const char* text,
                                           size_t bytes, int special, brrr_tensor** ids);
/* The text, which may hold zero bytes: `bytes` without the zero byte at its end. */
BRRR_API brrr_status brrr_tokenizer_decode(const brrr_tokenizer* tokenizer, const int32_t* ids,
                                           size_t count, char** text, size_t* bytes);

/* How a model folder writes a conversation. */
typedef struct brrr_chat_template brrr_chat_template;
BRRR_API brrr_status brrr_chat_template_open(const char* path, brrr_chat_template** chat);
BRRR_API void brrr_chat_template_free(brrr_chat_template* chat);
/* The text up to where the next answer begins. roles[i]: "system", "user", "assistant". */
BRRR_API brrr_status brrr_chat_template_render(const brrr_chat_template* chat,
                                               const char* const* roles,
                                               const char* const* contents, size_t count,
                                               char** text);

/* ---- graphs -----------------------------------------------------------------------------------
 */

typedef struct brrr_graph brrr_graph;
/* A value of a graph: result `port` of node `node`. */
typedef struct brrr_value {
  uint32_t node, port;
} brrr_value;

BRRR_API brrr_status brrr_graph_create(brrr_graph** graph);
/* The text form that `brrr train --dump-graph` writes. */
BRRR_API brrr_status brrr_graph_parse(const char* text, brrr_graph** graph);
BRRR_API void brrr_graph_free(brrr_graph* graph);
BRRR_API brrr_status brrr_graph_text(const brrr_graph* graph, char** text);
/* A tensor that each run is given. */
BRRR_API brrr_status brrr_graph_input(brrr_graph* graph, const char* name, brrr_dtype dtype,
                                      const int64_t* sizes, int rank, brrr_value* value);
/* A weight. init: "zeros", "ones", "normal:0.02" (standard deviation), "uniform:0.1" (bound of the
 * absolute value). Weight decay applies to parameters of two or more axes. */
BRRR_API brrr_status brrr_graph_parameter(brrr_graph* graph, const char* name, const int64_t* sizes,
                                          int rank, const char* init, brrr_value* value);
/* Every element is `number`. */
BRRR_API brrr_status brrr_graph_constant(brrr_graph* graph, brrr_dtype dtype, const int64_t* sizes,
                                         int rank, double number, brrr_value* value);
/* Appends an op of docs/ops.md. attributes: "{axis=1, eps=1e-05}", or NULL. Writes `capacity`
 * results at most, and how many there are. */
BRRR_API brrr_status brrr_graph_call(brrr_graph* graph, const char* op, const brrr_value* operands,
                                     size_t operand_count, const char* attributes,
                                     brrr_value* results, size_t capacity, size_t* result_count);
/* Makes the element-wise mean of the values along `axes`, or a number from all (axis_count 0). */
BRRR_API brrr_status brrr_graph_mean(brrr_graph* graph, brrr_value x, const int64_t* axes,
                                     size_t axis_count, brrr_value* value);
/* dropout(x): each element is 0 with probability p, else scaled by 1 / (1 - p); x itself where a
 * graph is evaluated. */
BRRR_API brrr_status brrr_graph_dropout(brrr_graph* graph, brrr_value x, double p,
                                        brrr_value* value);
BRRR_API brrr_status brrr_graph_output(brrr_graph* graph, const char* name, brrr_value value);
/* Writes the type of a value: up to `capacity` sizes. */
BRRR_API brrr_status brrr_graph_type(const brrr_graph* graph, brrr_value value, brrr_dtype* dtype,
                                     int* rank, int64_t* sizes, size_t capacity);
/* The derivatives of the number `loss` with respect to `of`: any values of the graph. */
BRRR_API brrr_status brrr_graph_gradient(brrr_graph* graph, brrr_value loss, const brrr_value* of,
                                         size_t count, brrr_value* gradients);
/* A module that computes the graph's outputs. weights: a tensor for each parameter by name; those
 * that are left out have their initial values by `seed`. Options as brrr_module_open(). */
BRRR_API brrr_status brrr_graph_compile(const brrr_graph* graph, const char* const* names,
                                        brrr_tensor* const* weights, size_t weight_count,
                                        uint32_t seed, const brrr_option* options, size_t count,
                                        brrr_module** module);

/* ---- training ---------------------------------------------------------------------------------
 */

typedef struct brrr_run brrr_run;

/* A training run with the options of `brrr train`, ready for its first step: a model that a preset
 * or init-from names and the data that text, data or task name. `graph` NULL. With `graph`: your
 * own model, whose output `loss` is the mean over a micro-batch, and whose batches you give to
 * brrr_run_step(); options then concern the optimizer, precision, accumulation, recomputation and
 * memory. Whether it fits into memory is known before anything is allocated (BRRR_NO_MEMORY). */
BRRR_API brrr_status brrr_run_create(const brrr_graph* graph, const char* loss,
                                     const brrr_option* options, size_t count, brrr_run** run);
BRRR_API void brrr_run_free(brrr_run* run);

typedef struct brrr_step {
  int64_t step;     /* steps done, this one included */
  double loss;      /* mean over the step's micro-batches */
  double grad_norm; /* before clipping; not finite: the step changed nothing */
  double learning_rate;
  double loss_scale; /* of fp16 gradients; else 1 */
  double seconds;    /* waiting for data included */
  int64_t tokens;    /* trained on in this step; micro-batches of your own model: 0 */
} brrr_step;

/* One optimizer step. Without tensors: on the next batches of the run's data. With tensors: `count`
 * of them for each of the run's accumulated micro-batches, one micro-batch after the other, with
 * the same names in each. */
BRRR_API brrr_status brrr_run_step(brrr_run* run, const char* const* names,
                                   brrr_tensor* const* tensors, size_t count, brrr_step* step);
/* Bytes of tensors of your own batches that were copied since the run was made: see
 * brrr_module_copied_bytes(). A step whose loss is not finite keeps a copy of its batches. */
BRRR_API int64_t brrr_run_copied_bytes(const brrr_run* run);
/* The loss on the run's validation data, or without dropout on one micro-batch of your own. */
BRRR_API brrr_status brrr_run_evaluate(brrr_run* run, const char* const* names,
                                       brrr_tensor* const* tensors, size_t count, double* loss);
/* The means of numbers that an evaluation graph computes from batches, weighted by their rows: no
 * dropout, no gradient, and the run's parameters as they are now, by their names. graph: of your
 * own, with parameters of the run alone; NULL: the run's own graph, whose batches have all of its
 * inputs that the outputs need. outputs: names of outputs f32[]. tensors: `count` for each of
 * `batch_count` batches, one batch after the other, with the same names in each. means[i] is of
 * outputs[i]; rows, which may be NULL, gets the rows of all batches. A batch has as many rows as
 * the first axis of its first tensor says. A graph is compiled at its first use and kept. */
BRRR_API brrr_status brrr_run_evaluate_graph(brrr_run* run, const brrr_graph* graph,
                                             const char* const* outputs, size_t output_count,
                                             const char* const* names, brrr_tensor* const* tensors,
                                             size_t count, size_t batch_count, double* means,
                                             int64_t* rows);
/* Steps that the options ask for, and steps done. */
BRRR_API int64_t brrr_run_max_steps(const brrr_run* run);
BRRR_API int64_t brrr_run_steps_done(const brrr_run* run);
/* Micro-batches of a step: of this process, where several train together. */
BRRR_API int64_t brrr_run_accumulation(const brrr_run* run);
/* Which of the processes that train together this one is, from 0, and how many there are. A
 * launcher (brrr launch, mpirun, torchrun, srun) starts them; each makes the same calls. */
BRRR_API int64_t brrr_run_rank(const brrr_run* run);
BRRR_API int64_t brrr_run_ranks(const brrr_run* run);
/* The rows (first axis) of all processes, those of rank 0 first, on each of them. most_rows: cuts
 * off what a last batch repeats; -1: all. Processes may give different numbers of rows. */
BRRR_API brrr_status brrr_run_gather(brrr_run* run, const brrr_tensor* rows, int64_t most_rows,
                                     brrr_tensor** all);

typedef struct brrr_plan {
  int64_t parameter_bytes, state_bytes, activation_bytes; /* of the arena */
  int64_t arena_bytes;                                    /* exact */
  int64_t process_bytes;                                  /* the forecast of the process' peak */
  int64_t limit_bytes;                                    /* that it had to keep */
} brrr_plan;
BRRR_API brrr_status brrr_run_plan(const brrr_run* run, brrr_plan* plan);
/* How long a step will take: a forecast from the compiled programs and the measured rates of this
 * machine's processor, without reading data. 0: unknown, as on another device, and where the rates
 * were never measured. measure: not 0: then measures them now, in a few seconds, and keeps them in
 * the cache folder, as `brrr plan` does. */
BRRR_API brrr_status brrr_run_forecast(const brrr_run* run, int measure, double* step_seconds);
/* A parameter's numbers now, f32 or its own dtype. */
BRRR_API brrr_status brrr_run_parameter(brrr_run* run, const char* name, brrr_tensor** tensor);
/* The model's folder (Hugging Face), or of your own graph model.safetensors and graph.txt. */
BRRR_API brrr_status brrr_run_save(brrr_run* run, const char* folder);
/* A checkpoint in `folder`/checkpoint-NNNNNN, and back: parameters, optimizer, step and position in
 * the data. */
BRRR_API brrr_status brrr_run_save_state(brrr_run* run, const char* folder);
BRRR_API brrr_status brrr_run_load_state(brrr_run* run, const char* checkpoint);
/* Times every kernel of the steps from here on (not 0), or no more (0). */
BRRR_API brrr_status brrr_run_time_steps(brrr_run* run, int on);
/* What the kernels of the timed steps took, the slowest first: a line each. */
BRRR_API brrr_status brrr_run_profile(brrr_run* run, char** text);

/* Gets every step of brrr_train(). Not 0: the run saves a checkpoint and ends with BRRR_STOPPED. */
typedef int (*brrr_on_step)(void* context, const brrr_step* step);
/* `brrr train` from begin to end, its run folder included. json gets what `brrr train --json`
 * prints. */
BRRR_API brrr_status brrr_train(const brrr_option* options, size_t count, brrr_on_step on_step,
                                void* context, char** json);

#ifdef __cplusplus
}
#endif

#endif
