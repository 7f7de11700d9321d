#include "cli/pictures/picture_verbs.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>

#include "base/clock.h"
#include "base/human.h"
#include "base/integers.h"
#include "base/memory.h"
#include "base/tell.h"
#include "base/threads/parallel.h"
#include "cli/commands.h"
#include "cli/join_ranks.h"
#include "cli/model_option.h"
#include "cli/texts/class_scores.h"
#include "cli/texts/encoder_texts.h"
#include "formats/json_file.h"
#include "formats/npy.h"
#include "infer/picture_model.h"

namespace brrr::cli {

using infer::check_finite;
namespace {

using PicturesJson = nlohmann::ordered_json;  // scores stand in the order of the labels
using infer::PicturesOptions;

constexpr int64_t kUsualBatch = 16;

bool ends_as_picture(const fs::path& path) {
  static const std::set<std::string> kEndings = {".jpg", ".jpeg", ".png", ".webp",
                                                 ".ppm", ".pgm",  ".pnm"};
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return kEndings.contains(ending);
}

/// Returns the files that the paths name; of folders, the files whose names end as those of
/// pictures, sorted.
std::vector<fs::path> files_of(const std::vector<std::string>& paths) {
  std::vector<fs::path> files;
  for (const fs::path path : paths) {
    std::error_code ignored;
    if (!fs::is_directory(path, ignored)) {
      files.push_back(path);
      continue;
    }
    std::vector<fs::path> inside;
    for (fs::recursive_directory_iterator at(path, ignored), end; at != end; at.increment(ignored))
      if (fs::is_regular_file(at->path(), ignored) && ends_as_picture(at->path()))
        inside.push_back(at->path());
    if (inside.empty()) user_error("{}: the folder holds no pictures", path.string());
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

/// Runs a model on the pictures that the options name, batch by batch.
class PictureRun {
 public:
  PictureRun(const PicturesOptions& options, const io::ModelFolder& model,
             Communicator* communicator)
      : options_(options),
        communicator_(communicator),
        files_(files_of(options.images)),
        folder_(model.folder),
        title_(infer::title_of(model)),
        model_(model, machine::backend_for(options.device), how(options, model)) {
    if (!options.text.empty()) usage_error("expected --images or texts, not both");
  }

  /// Calls `on_picture` with the path and the numbers of each picture that can be read, in order.
  /// Ranks compute batches in turn, and all of them get all results.
  void run(const std::function<void(const std::string& path, std::span<const float> numbers)>&
               on_picture) {
    check_same_files(communicator_, "pictures", [&] { return names_and_sizes(); });
    const Stopwatch watch;
    const int64_t batch = model_.batch();
    divide_pieces(
        communicator_, ceil_div(std::ssize(files_), batch), 1,
        [&](int64_t piece) { return results_of(files_of_batch(piece)); },
        [&](int64_t piece, Packed& results) {
          use(files_of_batch(piece), results, on_picture);
          return true;
        });
    seconds_ = watch.seconds();
  }

  int64_t count() const { return count_; }
  io::Json figures() const {
    return {{"pictures", count_},
            {"skipped", skipped_},
            {"seconds", seconds_},
            {"pictures_per_second", rate_of(count_, seconds_)},
            {"process_peak_bytes", peak_resident_bytes()},
            {"model", folder_.string()}};
  }
  void say_rate() const {
    const double rate = rate_of(count_, seconds_);
    if (skipped_ > 0)
      tell("note: {} could not be read and were left out\n", counted(skipped_, "picture"));
    tell("{} in {}, {:.{}f} images/s ({})\n", counted(count_, "picture"), duration_text(seconds_),
         rate, rate < 9.95 ? 1 : 0, title_);
  }

 private:
  /// Identifies the pictures, so that ranks number the same ones.
  std::string names_and_sizes() const {
    uint32_t crc = 0;
    for (const fs::path& file : files_) {
      std::error_code ignored;
      const std::string text = fmt::format("{} {}\n", file.string(), fs::file_size(file, ignored));
      crc = crc32c(text.data(), text.size(), crc);
    }
    return fmt::format("{} ({})", counted(std::ssize(files_), "picture"), crc_text(crc));
  }

  static infer::EncoderOptions how(const PicturesOptions& options, const io::ModelFolder& model) {
    const RunPrecision precision = precision_of(options, model);
    return {.precision = precision.dtype,
            .quantization = precision.quantization,
            .batch_size = options.batch_size > 0 ? options.batch_size : kUsualBatch,
            .memory = memory_of(options, "a smaller --batch-size")};
  }

  std::span<const fs::path> files_of_batch(int64_t batch) const {
    const auto most = static_cast<size_t>(model_.batch());
    const auto files = std::span(files_).subspan(static_cast<size_t>(batch) * most);
    return files.first(std::min(files.size(), most));
  }

  /// Returns an error for each file ("": none), followed by the results of the files without one.
  Packed results_of(std::span<const fs::path> files) {
    const io::PictureForm& form = model_.form();
    const auto size = static_cast<size_t>(form.channels * form.height * form.width);
    std::vector<float> pixels(files.size() * size);
    std::vector<std::string> faults(files.size());
    parallel_for(std::ssize(files), 1, [&](int64_t first, int64_t end) {
      for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(end); ++i)
        faults[i] = read(files[i], std::span(pixels).subspan(i * size, size));
    });
    Packed results;
    size_t kept = 0;
    for (size_t i = 0; i < files.size(); ++i) {
      results.put_text(faults[i]);
      if (!faults[i].empty()) continue;
      if (kept < i)
        std::copy_n(pixels.begin() + static_cast<std::ptrdiff_t>(i * size), size,
                    pixels.begin() + static_cast<std::ptrdiff_t>(kept * size));
      ++kept;
    }
    model_.run(std::span(pixels).first(kept * size),
               [&](size_t, std::span<const float> numbers) { results.put(numbers); });
    return results;
  }

  void use(std::span<const fs::path> files, Packed& results,
           const std::function<void(const std::string&, std::span<const float>)>& on_picture) {
    std::vector<std::string> names;
    for (const fs::path& file : files)
      if (const std::string fault = results.take_text(); fault.empty())
        names.push_back(file.string());
      else
        skip(fault);
    for (const std::string& name : names) {
      const std::vector<float> numbers = results.take<float>();
      check_finite(numbers, name);
      on_picture(name, numbers);
    }
    count_ += std::ssize(names);
    flush_output();
  }

  /// Reads a picture in the form of the model's input. Returns an error message, or "".
  std::string read(const fs::path& file, std::span<float> to) const {
    const io::PictureForm& form = model_.form();
    try {
      io::evaluation_pixels(
          io::read_image(file, {.channels = form.channels, .most_pixels = options_.max_pixels}),
          form, to);
      return "";
    } catch (const UserError& e) {
      return e.what();
    }
  }

  void skip(const std::string& fault) {
    if (skipped_ >= options_.skip_bad_images)
      throw UserError(options_.skip_bad_images == 0
                          ? fault + "; --skip-bad-images N leaves out up to N of such pictures"
                          : fmt::format("{}; --skip-bad-images {} were left out before", fault,
                                        options_.skip_bad_images));
    ++skipped_;
    tell("note: left out: {}\n", fault);
  }

  const PicturesOptions& options_;
  Communicator* communicator_;
  std::vector<fs::path> files_;
  fs::path folder_;
  std::string title_;
  infer::PictureModel model_;
  int64_t count_ = 0, skipped_ = 0;
  double seconds_ = 0;
};

/// A model, and the pictures that it is run on.
struct OpenPictures {
  io::ModelFolder model;
  std::optional<PictureRun> run;
  Communicator* communicator = nullptr;

  OpenPictures(io::ModelFolder folder, const PicturesOptions& options, Communicator* ranks)
      : model(std::move(folder)), communicator(ranks) {
    run.emplace(options, model, communicator);
  }
};

std::unique_ptr<OpenPictures> open_to_classify(const infer::ClassifyOptions& options,
                                               Communicator* communicator) {
  io::ModelFolder model = open_named_model(
      options.model, {.reads_tokenizer = false, .adapters = io::parse_adapters(options.adapter)});
  const models::Task& task = model.definition->task();
  if (model.definition->sees_pictures() && task.head != models::Head::classes)
    user_error(
        "{} has no classes: its model is for {}; fine-tune it with `brrr train --task images "
        "--data FOLDER --init-from {}`",
        model.folder.string(), "feature vectors", model.folder.string());
  return std::make_unique<OpenPictures>(std::move(model), options, communicator);
}

int classify(const infer::ClassifyOptions& options, OpenPictures& open) {
  check_same_models(open.communicator, open.model, options.device);
  const models::Task& task = open.model.definition->task();
  PictureRun& pictures = *open.run;
  ResultList list("results");
  pictures.run([&](const std::string& path, std::span<const float> logits) {
    const std::vector<double> p = probabilities_of(logits, task);
    std::vector<size_t> order(p.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
    if (options.json) {
      PicturesJson scores = PicturesJson::object();
      for (size_t i = 0; i < p.size(); ++i) scores[task.labels[i]] = p[i];
      list.print(io::json_line(PicturesJson{
          {"image", path}, {"label", task.labels[order[0]]}, {"scores", std::move(scores)}}));
      return;
    }
    if (!options.all_scores)
      order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
    std::string line = path;
    for (const size_t i : order) line += fmt::format("\t{}\t{:.4f}", task.labels[i], p[i]);
    fmt::print("{}\n", line);
  });
  if (options.json) list.finish(io::json_line(pictures.figures()));
  pictures.say_rate();
  return 0;
}

void check_embed_options(const infer::EmbedOptions& options) {
  for (const auto& [is_given, name] : {std::pair(!options.similarity.empty(), "similarity"),
                                       {!options.pooling.empty(), "pooling"},
                                       {!options.prompt_name.empty(), "prompt-name"},
                                       {options.truncate_dim > 0, "truncate-dim"}})
    if (is_given) usage_error("--{} is for texts; leave it out with --images", name);
}

std::unique_ptr<OpenPictures> open_to_embed(const infer::EmbedOptions& options,
                                            Communicator* communicator) {
  if (is_first_rank(communicator)) check_place(options.output);
  check_embed_options(options);
  io::ModelFolder model =
      open_named_model(options.model, {.task = models::Task{.head = models::Head::embedding},
                                       .reads_tokenizer = false,
                                       .adapters = io::parse_adapters(options.adapter)});
  return std::make_unique<OpenPictures>(std::move(model), options, communicator);
}

int embed(const infer::EmbedOptions& options, OpenPictures& open) {
  check_same_models(open.communicator, open.model, options.device);
  PictureRun& pictures = *open.run;
  ResultList list("embeddings");
  std::vector<float> all;
  size_t width = 0;
  pictures.run([&](const std::string& path, std::span<const float> vector) {
    width = vector.size();
    if (!options.output.empty())
      all.insert(all.end(), vector.begin(), vector.end());
    else if (options.json)
      list.print(fmt::format("[{}]", fmt::join(vector, ",")));
    else if (options.json_lines)
      fmt::print("{{\"image\":{},\"embedding\":[{}]}}\n", io::json_line(PicturesJson(path)),
                 fmt::join(vector, ","));
    else
      fmt::print("{}\n", fmt::join(vector, " "));
  });
  if (options.json) {
    io::Json rest = pictures.figures();
    rest["dimension"] = width;
    list.finish(io::json_line(rest));
  }
  if (!options.output.empty() && is_first_rank(open.communicator)) {
    io::write_npy(options.output, all, pictures.count(), static_cast<int64_t>(width));
    tell("{}: {} vectors of {} numbers\n", options.output, pictures.count(), width);
  }
  pictures.say_rate();
  return 0;
}

}  // namespace

int classify_pictures(const infer::ClassifyOptions& options) {
  return share_work(
      options.threads,
      [&](Communicator* communicator) { return open_to_classify(options, communicator); },
      [&](OpenPictures& open) { return classify(options, open); });
}

int embed_pictures(const infer::EmbedOptions& options) {
  return share_work(
      options.threads,
      [&](Communicator* communicator) { return open_to_embed(options, communicator); },
      [&](OpenPictures& open) { return embed(options, open); });
}

}  // namespace brrr::cli
