#include "train/dataset.h"

#include <limits>

#include "base/file.h"
#include "base/human.h"
#include "base/integers.h"
#include "base/memory.h"
#include "data/corpus.h"
#include "data/images/image_set.h"
#include "data/labelled/metrics.h"
#include "data/row_order.h"
#include "data/stream_batches.h"
#include "data/text_samples.h"
#include "data/window_batches.h"
#include "machine/device.h"
#include "train/chat/chat_data.h"
#include "train/dataset_tokenizer.h"
#include "train/fit.h"
#include "train/options/evaluation_options.h"
#include "train/parts.h"
#include "train/preferences/preference_data.h"

namespace brrr::train {
namespace {

constexpr uint64_t kMostAhead = uint64_t{64} << 20;      // bytes of text that "auto" reads at once
constexpr uint64_t kMostValidation = uint64_t{8} << 20;  // bytes of text beside a stream
constexpr int64_t kLittleText = int64_t{8}
                                << 20;  // bytes that are read so that a refusal can name the budget
constexpr uint64_t kLearningSample = uint64_t{16}
                                     << 20;  // bytes of a stream that a tokenizer is learnt from

// Returns the byte at which validation begins, at the start of a UTF-8 character.
size_t split_point(std::string_view text, double val_fraction) {
  size_t at = static_cast<size_t>(static_cast<double>(text.size()) * (1 - val_fraction));
  while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return at;
}

// Returns whether the validation text has at least one sample. A note says where it has none,
// unless --val-fraction is 0.
bool enough_for_validation(const io::TokenSource& val, const TrainOptions& options,
                           std::vector<std::string>& notes) {
  if (options.skips_validation()) return false;
  if (val.tokens() >= options.context + 1) return true;
  notes.push_back(fmt::format("no validation: {} has {}, one sample needs {}", val.description(),
                              counted(val.tokens(), "token"), options.context + 1));
  return false;
}

void check_length(const io::TokenSource& source, const char* what, int64_t context) {
  if (source.tokens() < context + 1)
    user_error(
        "{} has {}, one sample needs {} (context {} + 1): use more text or a smaller "
        "--context",
        what, counted(source.tokens(), "token"), context + 1, context);
}

// Returns the documents of a text: its files, split at the separator, which is left out.
std::vector<std::string_view> documents_of(const io::Corpus& corpus) {
  const std::string& separator = corpus.separator;
  std::vector<std::string_view> documents;
  size_t begin = 0;
  for (const size_t end : corpus.document_ends) {
    std::string_view file = std::string_view(corpus.text).substr(begin, end - begin);
    begin = end;
    while (!file.empty()) {
      const size_t at = separator.empty() ? std::string_view::npos : file.find(separator);
      if (at != 0) documents.push_back(file.substr(0, at));
      file.remove_prefix(at == std::string_view::npos ? file.size() : at + separator.size());
    }
  }
  return documents;
}

// Notes how many documents are split.
void note_split_documents(const TrainOptions& options, Dataset& d) {
  if (!packs_documents(options)) return;
  const int64_t split = io::split_documents(d.documents, options.context);
  if (split > 0)
    d.notes.push_back(fmt::format(
        "{} of {} documents are longer than the context of {} and are split; a larger --context "
        "keeps them whole",
        with_commas(split), with_commas(std::ssize(d.documents)),
        counted(options.context, "token")));
}

// Tokenises each document; the last ones, about --val-fraction of the text, are for validation.
void encode_documents(const io::Corpus& corpus, const TrainOptions& options, Dataset& d) {
  const auto val_begin = split_point(corpus.text, options.val_fraction);
  std::vector<int32_t> train, val;
  const bool packs = packs_documents(options);
  for (const std::string_view document : documents_of(corpus)) {
    const auto begin = static_cast<size_t>(document.data() - corpus.text.data());
    const bool validates = begin >= val_begin && !train.empty();
    std::vector<int32_t>& ids = validates ? val : train;
    const auto first = static_cast<int64_t>(ids.size());
    d.tokenizer->encode(document, ids);
    // A token follows the last one of a document: its target, or the separator of a masked row.
    const int32_t end = d.masks ? d.masks->sep : d.tokenizer->end_of_text();
    if (end >= 0) ids.push_back(end);
    if (!validates || packs)
      (validates ? d.val_documents : d.documents).push_back({first, std::ssize(ids)});
  }
  d.train = io::TokenSource::from_ids(std::move(train), "the training text");
  d.val = io::TokenSource::from_ids(std::move(val), "the validation text");
  note_split_documents(options, d);
}

/// How texts are masked for a masked language model; nothing for other models.
std::optional<io::MaskOptions> masks_of(const TrainOptions& o, const io::Tokenizer& tokenizer) {
  if (models::find_architecture(o.architecture).head != models::Head::masked_token)
    return std::nullopt;
  io::MaskOptions m = io::mask_options(tokenizer, o.mlm_probability);
  if (o.whole_word_mask) m.continues_word = io::ids_that_continue_words(tokenizer);
  return m;
}

std::unique_ptr<io::Tokenizer> known_or_made(const TrainOptions& options,
                                             const std::string& tokenizer_folder,
                                             const Learn& learn) {
  if (!tokenizer_folder.empty()) return io::load_tokenizer(tokenizer_folder);
  return make_tokenizer(options, learn);
}

Dataset from_shards(const TrainOptions& options, const std::string& tokenizer_folder) {
  const bool folder = options.data.size() == 1 && fs::is_directory(options.data[0]);
  const bool split = folder && options.val_data.empty();
  Dataset d;
  d.train = split ? io::TokenSource::open_split(options.data[0], "train")
                  : io::TokenSource::open(options.data);
  const bool has_val_shards = split && io::TokenSource::has_split(options.data[0], "val");
  const bool val_in_folder = has_val_shards && !options.skips_validation();
  if (has_val_shards && !val_in_folder) d.notes.push_back(unread_validation(options.data[0]));
  if (val_in_folder)
    d.val = io::TokenSource::open_split(options.data[0], "val");
  else if (!options.val_data.empty())
    d.val = io::TokenSource::open(options.val_data);
  d.tokenizer = known_or_made(options, tokenizer_folder, {});
  d.masks = masks_of(options, *d.tokenizer);
  std::vector<std::string> shards = options.data;
  shards.insert(shards.end(), options.val_data.begin(), options.val_data.end());
  if (!tokenizer_folder.empty() || !options.tokenizer.empty())
    check_tokenizer(*d.tokenizer, tokenizer_folder.empty() ? options.tokenizer : "",
                    tokenizer_folder, shards);
  if (by_document(options)) {
    if (d.tokenizer->end_of_text() < 0)
      user_error(
          "--sampling {}: the {} tokenizer has no end-of-text token, so the shards do not say "
          "where "
          "a document ends; train on the text (--text), or make shards with another tokenizer",
          options.sampling, d.tokenizer->kind());
    d.documents = io::find_documents(d.train, d.tokenizer->end_of_text());
    if (packs_documents(options) && d.val.tokens() > 0)
      d.val_documents = io::find_documents(d.val, d.tokenizer->end_of_text());
    note_split_documents(options, d);
  } else {
    check_length(d.train, d.train.description().c_str(), options.context);
  }
  d.has_val = val_in_folder || !options.val_data.empty();
  if (d.has_val)
    d.has_val = enough_for_validation(d.val, options, d.notes);
  else if (!options.skips_validation())
    d.notes.push_back(
        split ? fmt::format("no validation: {} holds no *val*.bin shards", options.data[0])
              : "no validation: name validation shards with --val-data");
  d.description = fmt::format("{} ({} tokens)", d.train.description(), d.train.tokens());
  return d;
}

Dataset from_text_ahead(const TrainOptions& options, const std::string& tokenizer_folder,
                        const io::CorpusOptions& corpus_options) {
  const io::Corpus corpus = io::load_corpus(corpus_options);
  const std::string_view text = corpus.text;
  Dataset d;
  d.tokenizer = known_or_made(options, tokenizer_folder, [&](const auto& kind) {
    std::string without_marks;
    return learn_tokenizer(io::text_to_learn_from(corpus, without_marks), kind);
  });
  const io::Tokenizer& tokenizer = *d.tokenizer;
  d.masks = masks_of(options, tokenizer);
  if (by_document(options)) {
    encode_documents(corpus, options, d);
  } else {
    const size_t at = split_point(text, options.val_fraction);
    d.train = io::TokenSource::from_ids(tokenizer.encode(text.substr(0, at)), "the training text");
    d.val = io::TokenSource::from_ids(tokenizer.encode(text.substr(at)), "the validation text");
    check_length(d.train, "the training text", options.context);
  }
  if (!corpus.note.empty()) d.notes.push_back(corpus.note);
  d.has_val = enough_for_validation(d.val, options, d.notes);
  d.description =
      fmt::format("{}; {} + {} tokens, {} tokenizer of {}", corpus.description, d.train.tokens(),
                  d.val.tokens(), tokenizer.kind(), tokenizer.vocab_size());
  if (!d.documents.empty()) d.description += fmt::format(", {} documents", d.documents.size());
  return d;
}

// Tokenises the validation text; the training text is tokenised as a stream.
Dataset from_text_stream(const TrainOptions& options, const std::string& tokenizer_folder,
                         const io::CorpusFiles& corpus) {
  const io::TextFiles text(corpus.files, options.tokenizer == "byte");
  Dataset d;
  if (!corpus.note.empty()) d.notes.push_back(corpus.note);
  d.tokenizer = known_or_made(options, tokenizer_folder, [&](const auto& kind) {
    return kind ? learn_tokenizer(io::sample_text(text, kLearningSample), kind)
                : io::make_char_tokenizer(text);
  });
  // Without workers, the training thread encodes.
  d.tokenizer->prepare(std::max<int64_t>(1, options.dataloader_num_workers));
  d.masks = masks_of(options, *d.tokenizer);
  const auto share =
      static_cast<uint64_t>(static_cast<double>(text.bytes()) * options.val_fraction);
  auto [train, val] = text.split(text.bytes() - std::min(share, kMostValidation));
  d.stream = std::make_unique<io::TextFiles>(std::move(train));
  d.val = io::TokenSource::from_ids(io::encode_all(val, *d.tokenizer), "the validation text");
  d.has_val = enough_for_validation(d.val, options, d.notes);
  const double mb = 1e-6 * static_cast<double>(d.stream->bytes());
  d.description = fmt::format(
      "{}, {:.2f} MB of it to train on, tokenised while training; {} tokens for validation, {} "
      "tokenizer of {}",
      corpus.description, mb, d.val.tokens(), d.tokenizer->kind(), d.tokenizer->vocab_size());
  return d;
}

uint64_t bytes_of(const io::CorpusFiles& corpus) {
  uint64_t bytes = 0;
  std::error_code ignored;
  for (const fs::path& file : corpus.files) bytes += fs::file_size(file, ignored);
  return bytes;
}

bool streams(const TrainOptions& options, const io::CorpusFiles& corpus) {
  if (by_document(options)) return false;
  if (options.tokenize != "auto") return options.tokenize == "stream";
  return bytes_of(corpus) > kMostAhead;
}

/// Returns the smallest memory that the run needs without its text, in bytes. It assumes the
/// smallest vocabulary, because no tokenizer has been learnt yet.
int64_t least_without_text(const TrainOptions& options, int64_t budget) {
  FitContext context;
  context.model = model_of(options, 2);
  context.now = resident_memory();
  context.budget = budget;
  return fit(options, context, FitFreedom::memory).smallest.process.needed();
}

// Refuses a text that cannot fit with its tokens before it is read. The tokens are counted at their
// least: a character has at most four bytes, and the tokens of a vocabulary are not known yet.
void check_room_ahead(const TrainOptions& options, const io::CorpusFiles& corpus) {
  const auto bytes = static_cast<int64_t>(bytes_of(corpus));
  constexpr int64_t kIdBytes = sizeof(int32_t);
  const int64_t ids = options.tokenizer == "byte"   ? kIdBytes * bytes
                      : options.tokenizer == "char" ? bytes
                                                    : 0;
  MemoryLimit limit{std::numeric_limits<int64_t>::max(), ""};
  if (const auto usable = usable_memory())
    limit = {usable->bytes, "what this process may use (" + usable->source + ")"};
  const bool there_is_room = bytes + ids <= limit.bytes;
  // With a GPU, --memory-limit is for the GPU's memory.
  bool asked_for = false;
  if (!options.memory_limit.empty() && machine::backend_for(options.device).memory_bytes == 0)
    if (const int64_t asked = parse_memory(options.memory_limit); asked < limit.bytes) {
      limit = {asked, "--memory-limit"};
      asked_for = true;
    }
  if (bytes + ids <= limit.bytes) return;
  // Below the memory of the program itself, no way of reading the text helps. A small text is read
  // nevertheless, because the refusal of the run then names the smallest budget.
  if (there_is_room && bytes <= kLittleText && limit.bytes < resident_memory().needed()) return;
  const bool shards_only = by_document(options);
  const int64_t least = least_without_text(options, limit.bytes);
  const std::string advice =
      least <= limit.bytes
          ? fmt::format("{}`brrr data prepare` and --data",
                        shards_only ? "Make shards of it: "
                                    : "Use --tokenize stream, or make shards of it: ")
          : fmt::format(
                "Even {} the run needs {} or more: use {}",
                shards_only ? "from shards (`brrr data prepare` and --data)"
                            : "with --tokenize stream",
                memory_text(least),
                asked_for ? "a larger --memory-limit or a smaller model" : "a smaller model");
  throw UserError(fmt::format("the text does not fit in memory: {} of it are read ahead, which "
                              "needs {} or more with their tokens, and {} is {}. {}",
                              memory_text(bytes), memory_text(bytes + ids), limit.source,
                              memory_text(limit.bytes), advice),
                  ExitCode::kNoMemory);
}

}  // namespace

bool by_document(const TrainOptions& options) {
  const TaskData data = traits_of(options).data;
  if (data != TaskData::text && data != TaskData::conversations) return false;
  return options.sampling == "documents" || options.sampling == "group_by_length";
}

bool packs_documents(const TrainOptions& options) { return options.pack == "documents"; }

bool joins_sequences(const TrainOptions& options) {
  return packs_documents(options) || traits_of(options).sequences_per_row > 1;
}

int64_t row_tokens(const TrainOptions& options) {
  return traits_of(options).sequences_per_row * options.context;
}

int64_t tokens_of_step(const TrainOptions& options) {
  return options.batch_size * options.gradient_accumulation_steps * row_tokens(options);
}

int64_t sequences_per_row(const TrainOptions& options) {
  constexpr int64_t kTokens = 4;  // average length below which documents may not fill a row
  return packs_documents(options) ? std::max<int64_t>(1, options.context / kTokens)
                                  : traits_of(options).sequences_per_row;
}

std::vector<int64_t> batch_lengths(const TrainOptions& options, bool flat, int64_t rows) {
  if (joins_sequences(options)) {
    // Packed rows are at least half full on average. Pairs may be much shorter than the context.
    const int64_t least = packs_documents(options) ? 2 : 16;
    std::vector<int64_t> lengths = io::flat_lengths(rows * row_tokens(options));
    std::erase_if(lengths, [&](int64_t n) { return least * n < lengths.back(); });
    return lengths;
  }
  if ((!learns_labels(options) && !by_document(options)) || learns_pictures(options)) return {};
  if (flat) return io::flat_lengths(rows * options.context);
  return learns_labels(options) ? io::padded_lengths(options.context)
                                : io::quarter_lengths(options.context);
}

namespace {

std::unique_ptr<io::BatchSource> masked(std::unique_ptr<io::BatchSource> text,
                                        const io::BatchOptions& options,
                                        const std::optional<io::MaskOptions>& masks) {
  if (!masks) return text;
  return std::make_unique<io::MaskedBatches>(std::move(text), options, *masks);
}

}  // namespace

int64_t Dataset::vocabulary() const {
  return pictures ? std::ssize(pictures->labels) : tokenizer->vocab_size();
}

std::optional<int64_t> Dataset::pad_token() const {
  const int32_t pad = tokenizer ? tokenizer->pad_token() : -1;
  return pad < 0 ? std::nullopt : std::optional<int64_t>(pad);
}

void Dataset::verify_shards(int64_t vocabulary) const {
  for (const io::TokenSource* source : {&train, &val})
    if (source->mapped_bytes() > 0) source->verify(vocabulary);
}

std::unique_ptr<io::BatchSource> Dataset::batches(const io::BatchOptions& options) const {
  if (pictures) return pictures->train(options);
  if (task)
    return std::make_unique<io::LabelledBatches>(task->train, task->name, options, task->labels);
  if (preferences) return preferences->train.batches(options);
  const io::BatchOptions text = masks ? io::MaskedBatches::options_for_text(options) : options;
  std::unique_ptr<io::BatchSource> source;
  if (!documents.empty())
    source = std::make_unique<io::DocumentBatches>(train, documents, text, learnt);
  else if (stream)
    source = std::make_unique<io::StreamBatches>(*stream, *tokenizer, text);
  else
    source = std::make_unique<io::WindowBatches>(train, text);
  return masked(std::move(source), options, masks);
}

std::unique_ptr<io::BatchSource> Dataset::val_batches(const io::BatchOptions& options) const {
  if (pictures) return pictures->val(options);
  if (task)
    return std::make_unique<io::LabelledBatches>(task->val, task->val_name, options, task->labels);
  if (preferences) return preferences->validation.batches(options);
  if (!val_documents.empty())
    return std::make_unique<io::DocumentBatches>(val, val_documents, options, val_learnt);
  const io::BatchOptions text = masks ? io::MaskedBatches::options_for_text(options) : options;
  return masked(std::make_unique<io::WindowBatches>(val, text), options, masks);
}

double Dataset::batches_per_epoch(const io::BatchOptions& options) const {
  const auto source = batches(options);
  if (!options.lengths.empty()) return static_cast<double>(source->batches_per_pass());
  if (pictures) return static_cast<double>(source->tokens()) / static_cast<double>(options.batch);
  const int64_t row =
      masks ? io::MaskedBatches::options_for_text(options).context : options.context;
  return static_cast<double>(source->tokens()) / static_cast<double>(options.batch * row);
}

int64_t Dataset::cached_bytes(const io::LoaderOptions& options, int64_t rows) const {
  if (pictures) return pictures->cached_bytes;
  if (!documents.empty()) {
    constexpr int64_t kRowBytes = 16, kPackedBytes = 12;  // bytes per row of the lists of rows
    return (options.flat ? kRowBytes + kPackedBytes : kRowBytes) *
           io::document_rows(documents, options.context);
  }
  if (preferences) return preferences->reference_bytes();
  if (!stream) return 0;
  constexpr int64_t kEncodingBytes = int64_t{16} << 10;  // stack and heap of a thread
  constexpr int64_t kTokenBytes = 12;                    // the text of a token, and its id twice
  return io::StreamBatches(*stream, *tokenizer, options).cache_bytes(rows, options.workers) +
         options.workers * (kEncodingBytes + options.context * kTokenBytes);
}

int64_t Dataset::longest_sequence() const {
  if (preferences) return std::max(preferences->train.longest(), preferences->validation.longest());
  int64_t longest = 0;
  if (task)
    for (const auto* rows : {&task->train, &task->val})
      for (const io::EncodedRow& row : *rows) longest = std::max(longest, std::ssize(row.ids));
  return longest;
}

std::function<void(const fs::path&)> Dataset::checkpoint_writer() const {
  if (!preferences) return nullptr;
  return [this](const fs::path& folder) { preferences->write_reference(folder / kReferenceFile); };
}

void shorten_context(TrainOptions& options, const Dataset& dataset) {
  const int64_t longest = dataset.longest_sequence();
  if (longest == 0 || options.was_given("context") || options.wants_resume()) return;
  constexpr int64_t kStep = 8;
  options.context = std::min(options.context, round_up(longest, kStep));
}

Dataset picture_dataset(TaskPictures pictures) {
  Dataset d;
  d.has_val = pictures.val != nullptr;
  d.description = pictures.description;
  d.notes = pictures.notes;
  d.pictures = std::move(pictures);
  return d;
}

Dataset task_dataset(const TrainOptions& options, TaskFiles files,
                     const std::string& tokenizer_folder) {
  Dataset d;
  d.tokenizer = known_or_made(options, tokenizer_folder, [&](const auto& kind) {
    return learn_tokenizer(text_of(files.train), kind);
  });
  d.task = encode_task(files, *d.tokenizer, options.truncate, options.context);
  d.has_val = !d.task->val.empty();
  d.notes = std::move(files.notes);
  const std::string judged = io::make_task_metrics(files.train.kind, files.train.labels,
                                                   std::max<int64_t>(files.train.values_per_row, 1))
                                 ->explanation();
  if (!judged.empty()) d.notes.push_back("precision, recall and F1: " + judged);
  const bool has_classes = !files.train.labels.empty();
  d.description =
      fmt::format("{}; {} for training and {} for validation{}", files.train.name,
                  counted(std::ssize(d.task->train), "text"), d.task->val.size(),
                  has_classes ? fmt::format("; labels {}", listed(files.train.labels)) : "");
  return d;
}

Dataset load_dataset(const TrainOptions& options, const std::string& tokenizer_folder) {
  const TaskData data = traits_of(options).data;
  if (data == TaskData::conversations) return chat_dataset(options, tokenizer_folder);
  if (data == TaskData::preferences) return preference_dataset(options, tokenizer_folder);
  if (!options.data.empty() && io::holds_images(options.data[0]))
    usage_error("{} holds pictures with classes; to learn them add --task images", options.data[0]);
  if (!options.data.empty()) return from_shards(options, tokenizer_folder);
  io::CorpusOptions corpus_options;
  for (const std::string& t : options.text) corpus_options.text.emplace_back(t);
  corpus_options.accept_bytes = options.tokenizer == "byte";
  corpus_options.offer_bytes = true;
  corpus_options.text_field = options.text_column;
  corpus_options.by_document = by_document(options);
  corpus_options.separator = options.separator;
  const io::CorpusFiles corpus = io::find_corpus(corpus_options);
  if (streams(options, corpus)) return from_text_stream(options, tokenizer_folder, corpus);
  check_room_ahead(options, corpus);
  return from_text_ahead(options, tokenizer_folder, corpus_options);
}

}  // namespace brrr::train
