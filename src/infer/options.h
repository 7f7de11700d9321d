#pragma once
// What `brrr generate` and `brrr eval` can be told; each struct has one option table. Values out of
// range are UserErrors with exit code 2 when they are set, so what the tables accept is valid.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/options.h"
#include "passes/precision/cache_precision.h"
#include "passes/precision/precision.h"

namespace brrr::infer {

/// The defaults are those of nanoGPT's sample.py, but for the number of samples and their length.
struct GenerateOptions {
  std::string model;  // "": the newest run folder; else a run, checkpoint or model folder, or
                      // the name of a model in the Hugging Face cache
  std::vector<std::string> adapter;  // folders of adapters to put on it, "FOLDER=SCALE"
  /// What is continued; "": the model's begin-of-text token. When it is not given, tokenizers that
  /// begin texts with such a token begin there, others with this newline.
  std::string prompt = "\n";
  std::string prompt_file;   // read instead of `prompt` ("-": standard input); "": none
  std::string prompts;       // a file with a prompt on each line, as JSON; "": none
  bool chat = false;         // the prompt is a user's turn, written by the folder's chat template
  std::string system;        // what the system says before the first turn; "": nothing
  std::string messages;      // a file of the turns so far; "": none
  std::string tools;         // a file of the tools that the template may offer; "": none
  bool interactive = false;  // turns are read from standard input
  int64_t context = 0;       // positions that are read at once; 0: the model's
  int64_t max_new_tokens = 300;
  int64_t num_samples = 1;
  double temperature = 0.8;  // 0: always the likeliest token
  int64_t top_k = 200;       // 0: all
  double top_p = 1.0;
  double min_p = 0;
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::string> stop;  // a text ends before any of these strings
  int64_t seed = 1337;
  bool cache = true;  // keys and values are kept; false recomputes every token (to compare)
  CachePrecision kv_cache = CachePrecision::computed;
  bool stream = true;  // print tokens as they come
  // For many prompts:
  int64_t parallel = 16;         // maximum number of texts at once
  int64_t prefill_tokens = 256;  // maximum number of tokens of a step that reads prompts
  int64_t beam_size = 1;         // above 1: beam search
  double length_penalty = 1;     // exponent of the length in the score of a beam
  int64_t prompt_lookup = 0;     // maximum number of tokens guessed per step; 0: none
  bool ordered = false;          // answers in the order of the prompts, not as they end
  bool logprobs = false;
  bool json = false;  // one JSON object on standard output
  Precision precision = Precision::fp32;
  std::string device = "auto";
  std::string memory_limit;  // "6GiB", of the process or of a GPU; "": what there is
  int64_t threads = 0;

  /// Canonical names that were given: others may come from the model's folder.
  std::set<std::string> given;
  bool was_given(const std::string& name) const { return given.contains(name); }
  bool has_precision() const { return was_given("precision"); }
  bool has_prompt() const { return was_given("prompt") || was_given("prompt-file"); }
  /// A chat without a prompt reads turns, too, unless a file ends with one.
  bool reads_turns() const {
    return interactive || (chat && !has_prompt() && messages.empty() && prompts.empty());
  }

  bool operator==(const GenerateOptions&) const = default;
};
const OptionTable<GenerateOptions>& generate_option_table();
/// Reads prompt_file into prompt.
GenerateOptions resolve_generate(const KeyValues& given);

struct EvalOptions {
  std::string model;
  std::vector<std::string> adapter;  // as GenerateOptions has it
  std::vector<std::string> text;     // files and folders; of a model with a task its file of labels
  std::vector<std::string> data;     // token shards; or the file of labels
  // How the file of labels is read, as in TrainOptions; text_column also names the field of a
  // .jsonl text.
  std::string text_column, text2_column, label_column;
  std::string header = "auto", quoting = "auto";
  bool truncate = true;
  double mlm_probability = 0.15;
  // How conversations and pairs of answers are scored, as in TrainOptions.
  std::string chat_template;
  // Preference loss. "auto" and nullopt: as the run that trained the adapter recorded it.
  std::string dpo_loss = "auto";
  std::optional<double> dpo_beta, dpo_label_smoothing;
  int64_t skip_bad_images = 0;  // as PicturesOptions has it
  int64_t max_pixels = 178'956'970;
  int64_t batch_size = 8;
  int64_t context = 0;  // 0: the model's
  bool disable_tqdm = false;
  bool json = false;
  Precision precision = Precision::fp32;
  bool is_precision_given = false;  // else a quantised folder is computed as it says
  std::string device = "auto";
  std::string memory_limit;  // as GenerateOptions has it
  int64_t threads = 0;

  bool has_precision() const { return is_precision_given; }

  bool operator==(const EvalOptions&) const = default;
};
const OptionTable<EvalOptions>& eval_option_table();
/// Checks that exactly one of text and data is given.
EvalOptions resolve_eval(const KeyValues& given);

/// What `brrr embed`, `brrr classify`, `brrr fill-mask` and `brrr rerank` share: texts, one to a
/// line.
struct TextsOptions {
  std::string model;  // as GenerateOptions has it
  std::vector<std::string> adapter;
  std::vector<std::string> text;  // files with a text on each line; empty: standard input
  bool truncate = true;           // a text that is too long is cut; false: it is an error
  int64_t max_length = 0;         // tokens of a text, special ones counted; 0: the model's
  int64_t batch_tokens = 16384;   // of a batch; a longer text is computed alone
  int64_t batch_size = 0;         // texts of a batch; 0: as many as batch_tokens allows
  bool json = false;
  Precision precision = Precision::fp32;
  bool is_precision_given = false;  // else a quantised folder is computed as it says
  std::string device = "auto";
  std::string memory_limit;  // "6GiB"; "": what there is
  int64_t threads = 0;

  bool has_precision() const { return is_precision_given; }

  bool operator==(const TextsOptions&) const = default;
};

/// Pictures instead of texts.
struct PicturesOptions : TextsOptions {
  std::vector<std::string> images;   // files, and folders of them; empty: texts are read
  int64_t skip_bad_images = 0;       // so many that cannot be read are left out
  int64_t max_pixels = 178'956'970;  // of a picture; larger ones are refused

  bool operator==(const PicturesOptions&) const = default;
};

struct EmbedOptions : PicturesOptions {
  std::string output;        // a file of NumPy's format; "": standard output
  std::string pooling;       // "": as the folder says
  bool normalize = true;     // false: vectors keep their length; true: as the folder says
  std::string prompt_name;   // of the prompt before each text; "": the folder's default
  int64_t truncate_dim = 0;  // numbers of a vector that are kept; 0: all
  std::string similarity;    // a text by whose similarity the others are ranked; "": none
  bool json_lines = false;   // a JSON object for each text

  bool operator==(const EmbedOptions&) const = default;
};
const OptionTable<EmbedOptions>& embed_option_table();
EmbedOptions resolve_embed(const KeyValues& given);

struct ClassifyOptions : PicturesOptions {
  bool pairs = false;       // a line holds two texts with a tab between them
  bool all_scores = false;  // of every class, not of the likeliest alone
  int64_t top_k = 5;        // of pictures: classes that are printed

  bool operator==(const ClassifyOptions&) const = default;
};
const OptionTable<ClassifyOptions>& classify_option_table();
ClassifyOptions resolve_classify(const KeyValues& given);

/// A model's scores of documents for a query. An encoder that gives vectors scores by their
/// similarity, one that gives classes or values reads query and document together.
struct RerankOptions : TextsOptions {
  std::string query;
  std::string label;  // the class whose probability is the score; "": the second of two
  int64_t top_k = 0;  // documents that are printed; 0: all

  bool operator==(const RerankOptions&) const = default;
};
const OptionTable<RerankOptions>& rerank_option_table();
RerankOptions resolve_rerank(const KeyValues& given);

struct FillMaskOptions : TextsOptions {
  int64_t top_k = 5;

  bool operator==(const FillMaskOptions&) const = default;
};
const OptionTable<FillMaskOptions>& fill_mask_option_table();
FillMaskOptions resolve_fill_mask(const KeyValues& given);

}  // namespace brrr::infer
